CREATE TABLE "experiments" (
	experiment_id INTEGER NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	artifact_location VARCHAR(256), 
	lifecycle_stage VARCHAR(32), 
	creation_time BIGINT, 
	last_update_time BIGINT, 
	workspace VARCHAR(63) DEFAULT 'default' NOT NULL, 
	CONSTRAINT experiment_pk PRIMARY KEY (experiment_id), 
	CONSTRAINT experiments_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), 
	CONSTRAINT uq_experiments_workspace_name UNIQUE (workspace, name)
);
INSERT INTO "experiments" VALUES(0,'Default','/home/somebody/mlruns/0','active',1795464101489,1795464101489,'default');
INSERT INTO "experiments" VALUES(1,'images','file:///artifacts','active',1795464101538,1795464101538,'default');
CREATE TABLE "latest_metrics" (
	"key" VARCHAR(250) NOT NULL, 
	value FLOAT NOT NULL, 
	timestamp BIGINT, 
	step BIGINT NOT NULL, 
	is_nan BOOLEAN NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT latest_metric_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), 
	CHECK (is_nan IN (0, 1))
);
INSERT INTO "latest_metrics" VALUES('train_time_s',100.125,1,0,0,'2a201fd4e90648cdbab9286ead069e3e');
INSERT INTO "latest_metrics" VALUES('mem_mib',628.0,1,0,0,'2a201fd4e90648cdbab9286ead069e3e');
INSERT INTO "latest_metrics" VALUES('val/acc',0.901,1,2,0,'2a201fd4e90648cdbab9286ead069e3e');
INSERT INTO "latest_metrics" VALUES('train_time_s',100.25,1,0,0,'16226fc38c9f41399cb7660685f25e34');
INSERT INTO "latest_metrics" VALUES('mem_mib',628.0,1,0,0,'16226fc38c9f41399cb7660685f25e34');
INSERT INTO "latest_metrics" VALUES('val/acc',0.902,1,2,0,'16226fc38c9f41399cb7660685f25e34');
INSERT INTO "latest_metrics" VALUES('train_time_s',100.375,1,0,0,'2ed7dea4ca5a43bbbb76cd6ca7b67636');
INSERT INTO "latest_metrics" VALUES('mem_mib',628.0,1,0,0,'2ed7dea4ca5a43bbbb76cd6ca7b67636');
INSERT INTO "latest_metrics" VALUES('val/acc',0.903,1,2,0,'2ed7dea4ca5a43bbbb76cd6ca7b67636');
INSERT INTO "latest_metrics" VALUES('train_time_s',100.5,1,0,0,'ac0fde9eeb85481ea5bcb37adb74a8de');
INSERT INTO "latest_metrics" VALUES('mem_mib',628.0,1,0,0,'ac0fde9eeb85481ea5bcb37adb74a8de');
INSERT INTO "latest_metrics" VALUES('val/acc',0.904,1,2,0,'ac0fde9eeb85481ea5bcb37adb74a8de');
INSERT INTO "latest_metrics" VALUES('train_time_s',100.625,1,0,0,'2ae5f96d8fc34f90a7d940852d8ebf0a');
INSERT INTO "latest_metrics" VALUES('mem_mib',628.0,1,0,0,'2ae5f96d8fc34f90a7d940852d8ebf0a');
INSERT INTO "latest_metrics" VALUES('val/acc',0.905,1,2,0,'2ae5f96d8fc34f90a7d940852d8ebf0a');
INSERT INTO "latest_metrics" VALUES('train_time_s',100.75,1,0,0,'d098d7e78bcf43e5b75d349a9043e7bd');
INSERT INTO "latest_metrics" VALUES('mem_mib',628.0,1,0,0,'d098d7e78bcf43e5b75d349a9043e7bd');
INSERT INTO "latest_metrics" VALUES('val/acc',0.906,1,2,0,'d098d7e78bcf43e5b75d349a9043e7bd');
INSERT INTO "latest_metrics" VALUES('train_time_s',110.875,1,0,0,'a2d10e7c6993409092cbc2ca066680e3');
INSERT INTO "latest_metrics" VALUES('mem_mib',1012.0,1,0,0,'a2d10e7c6993409092cbc2ca066680e3');
INSERT INTO "latest_metrics" VALUES('val/acc',0.917,1,2,0,'a2d10e7c6993409092cbc2ca066680e3');
INSERT INTO "latest_metrics" VALUES('train_time_s',111.0,1,0,0,'85858a5fddd94573bfddd3f83edad0c3');
INSERT INTO "latest_metrics" VALUES('mem_mib',1012.0,1,0,0,'85858a5fddd94573bfddd3f83edad0c3');
INSERT INTO "latest_metrics" VALUES('val/acc',0.918,1,2,0,'85858a5fddd94573bfddd3f83edad0c3');
INSERT INTO "latest_metrics" VALUES('train_time_s',111.125,1,0,0,'771b02b01e9a457ca57a71ae1bee2977');
INSERT INTO "latest_metrics" VALUES('mem_mib',1012.0,1,0,0,'771b02b01e9a457ca57a71ae1bee2977');
INSERT INTO "latest_metrics" VALUES('val/acc',0.919,1,2,0,'771b02b01e9a457ca57a71ae1bee2977');
INSERT INTO "latest_metrics" VALUES('train_time_s',111.25,1,0,0,'33a6d6a8e66c43f28bb9cdf2a5339a48');
INSERT INTO "latest_metrics" VALUES('mem_mib',1012.0,1,0,0,'33a6d6a8e66c43f28bb9cdf2a5339a48');
INSERT INTO "latest_metrics" VALUES('val/acc',0.92,1,2,0,'33a6d6a8e66c43f28bb9cdf2a5339a48');
INSERT INTO "latest_metrics" VALUES('train_time_s',111.375,1,0,0,'d7cc364da3e54b8fbbc9e5fead83219b');
INSERT INTO "latest_metrics" VALUES('mem_mib',1012.0,1,0,0,'d7cc364da3e54b8fbbc9e5fead83219b');
INSERT INTO "latest_metrics" VALUES('val/acc',0.921,1,2,0,'d7cc364da3e54b8fbbc9e5fead83219b');
INSERT INTO "latest_metrics" VALUES('train_time_s',111.5,1,0,0,'8cc92b0bda664a1ba59907033b878f4a');
INSERT INTO "latest_metrics" VALUES('mem_mib',1012.0,1,0,0,'8cc92b0bda664a1ba59907033b878f4a');
INSERT INTO "latest_metrics" VALUES('val/acc',0.922,1,2,0,'8cc92b0bda664a1ba59907033b878f4a');
CREATE TABLE "metrics" (
	"key" VARCHAR(250) NOT NULL, 
	value FLOAT NOT NULL, 
	timestamp BIGINT NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	step BIGINT DEFAULT '0' NOT NULL, 
	is_nan BOOLEAN DEFAULT '0' NOT NULL, 
	CONSTRAINT metric_pk PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), 
	CHECK (is_nan IN (0, 1))
);
INSERT INTO "metrics" VALUES('train_time_s',100.125,1,'2a201fd4e90648cdbab9286ead069e3e',0,0);
INSERT INTO "metrics" VALUES('mem_mib',628.0,1,'2a201fd4e90648cdbab9286ead069e3e',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.300333,1,'2a201fd4e90648cdbab9286ead069e3e',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.600667,1,'2a201fd4e90648cdbab9286ead069e3e',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.901,1,'2a201fd4e90648cdbab9286ead069e3e',2,0);
INSERT INTO "metrics" VALUES('train_time_s',100.25,1,'16226fc38c9f41399cb7660685f25e34',0,0);
INSERT INTO "metrics" VALUES('mem_mib',628.0,1,'16226fc38c9f41399cb7660685f25e34',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.300667,1,'16226fc38c9f41399cb7660685f25e34',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.601333,1,'16226fc38c9f41399cb7660685f25e34',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.902,1,'16226fc38c9f41399cb7660685f25e34',2,0);
INSERT INTO "metrics" VALUES('train_time_s',100.375,1,'2ed7dea4ca5a43bbbb76cd6ca7b67636',0,0);
INSERT INTO "metrics" VALUES('mem_mib',628.0,1,'2ed7dea4ca5a43bbbb76cd6ca7b67636',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.301,1,'2ed7dea4ca5a43bbbb76cd6ca7b67636',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.602,1,'2ed7dea4ca5a43bbbb76cd6ca7b67636',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.903,1,'2ed7dea4ca5a43bbbb76cd6ca7b67636',2,0);
INSERT INTO "metrics" VALUES('train_time_s',100.5,1,'ac0fde9eeb85481ea5bcb37adb74a8de',0,0);
INSERT INTO "metrics" VALUES('mem_mib',628.0,1,'ac0fde9eeb85481ea5bcb37adb74a8de',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.301333,1,'ac0fde9eeb85481ea5bcb37adb74a8de',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.602667,1,'ac0fde9eeb85481ea5bcb37adb74a8de',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.904,1,'ac0fde9eeb85481ea5bcb37adb74a8de',2,0);
INSERT INTO "metrics" VALUES('train_time_s',100.625,1,'2ae5f96d8fc34f90a7d940852d8ebf0a',0,0);
INSERT INTO "metrics" VALUES('mem_mib',628.0,1,'2ae5f96d8fc34f90a7d940852d8ebf0a',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.301667,1,'2ae5f96d8fc34f90a7d940852d8ebf0a',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.603333,1,'2ae5f96d8fc34f90a7d940852d8ebf0a',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.905,1,'2ae5f96d8fc34f90a7d940852d8ebf0a',2,0);
INSERT INTO "metrics" VALUES('train_time_s',100.75,1,'d098d7e78bcf43e5b75d349a9043e7bd',0,0);
INSERT INTO "metrics" VALUES('mem_mib',628.0,1,'d098d7e78bcf43e5b75d349a9043e7bd',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.302,1,'d098d7e78bcf43e5b75d349a9043e7bd',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.604,1,'d098d7e78bcf43e5b75d349a9043e7bd',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.906,1,'d098d7e78bcf43e5b75d349a9043e7bd',2,0);
INSERT INTO "metrics" VALUES('train_time_s',110.875,1,'a2d10e7c6993409092cbc2ca066680e3',0,0);
INSERT INTO "metrics" VALUES('mem_mib',1012.0,1,'a2d10e7c6993409092cbc2ca066680e3',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.305667,1,'a2d10e7c6993409092cbc2ca066680e3',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.611333,1,'a2d10e7c6993409092cbc2ca066680e3',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.917,1,'a2d10e7c6993409092cbc2ca066680e3',2,0);
INSERT INTO "metrics" VALUES('train_time_s',111.0,1,'85858a5fddd94573bfddd3f83edad0c3',0,0);
INSERT INTO "metrics" VALUES('mem_mib',1012.0,1,'85858a5fddd94573bfddd3f83edad0c3',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.306,1,'85858a5fddd94573bfddd3f83edad0c3',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.612,1,'85858a5fddd94573bfddd3f83edad0c3',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.918,1,'85858a5fddd94573bfddd3f83edad0c3',2,0);
INSERT INTO "metrics" VALUES('train_time_s',111.125,1,'771b02b01e9a457ca57a71ae1bee2977',0,0);
INSERT INTO "metrics" VALUES('mem_mib',1012.0,1,'771b02b01e9a457ca57a71ae1bee2977',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.306333,1,'771b02b01e9a457ca57a71ae1bee2977',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.612667,1,'771b02b01e9a457ca57a71ae1bee2977',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.919,1,'771b02b01e9a457ca57a71ae1bee2977',2,0);
INSERT INTO "metrics" VALUES('train_time_s',111.25,1,'33a6d6a8e66c43f28bb9cdf2a5339a48',0,0);
INSERT INTO "metrics" VALUES('mem_mib',1012.0,1,'33a6d6a8e66c43f28bb9cdf2a5339a48',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.306667,1,'33a6d6a8e66c43f28bb9cdf2a5339a48',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.613333,1,'33a6d6a8e66c43f28bb9cdf2a5339a48',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.92,1,'33a6d6a8e66c43f28bb9cdf2a5339a48',2,0);
INSERT INTO "metrics" VALUES('train_time_s',111.375,1,'d7cc364da3e54b8fbbc9e5fead83219b',0,0);
INSERT INTO "metrics" VALUES('mem_mib',1012.0,1,'d7cc364da3e54b8fbbc9e5fead83219b',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.307,1,'d7cc364da3e54b8fbbc9e5fead83219b',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.614,1,'d7cc364da3e54b8fbbc9e5fead83219b',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.921,1,'d7cc364da3e54b8fbbc9e5fead83219b',2,0);
INSERT INTO "metrics" VALUES('train_time_s',111.5,1,'8cc92b0bda664a1ba59907033b878f4a',0,0);
INSERT INTO "metrics" VALUES('mem_mib',1012.0,1,'8cc92b0bda664a1ba59907033b878f4a',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.307333,1,'8cc92b0bda664a1ba59907033b878f4a',0,0);
INSERT INTO "metrics" VALUES('val/acc',0.614667,1,'8cc92b0bda664a1ba59907033b878f4a',1,0);
INSERT INTO "metrics" VALUES('val/acc',0.922,1,'8cc92b0bda664a1ba59907033b878f4a',2,0);
CREATE TABLE "params" (
	"key" VARCHAR(250) NOT NULL, 
	value VARCHAR(8000) NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT param_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO "params" VALUES('batch_size','32','2a201fd4e90648cdbab9286ead069e3e');
INSERT INTO "params" VALUES('lr','0.03','2a201fd4e90648cdbab9286ead069e3e');
INSERT INTO "params" VALUES('seed','0','2a201fd4e90648cdbab9286ead069e3e');
INSERT INTO "params" VALUES('model','resnet18','2a201fd4e90648cdbab9286ead069e3e');
INSERT INTO "params" VALUES('batch_size','32','16226fc38c9f41399cb7660685f25e34');
INSERT INTO "params" VALUES('lr','0.03','16226fc38c9f41399cb7660685f25e34');
INSERT INTO "params" VALUES('seed','1','16226fc38c9f41399cb7660685f25e34');
INSERT INTO "params" VALUES('model','resnet18','16226fc38c9f41399cb7660685f25e34');
INSERT INTO "params" VALUES('batch_size','32','2ed7dea4ca5a43bbbb76cd6ca7b67636');
INSERT INTO "params" VALUES('lr','0.03','2ed7dea4ca5a43bbbb76cd6ca7b67636');
INSERT INTO "params" VALUES('seed','2','2ed7dea4ca5a43bbbb76cd6ca7b67636');
INSERT INTO "params" VALUES('model','resnet18','2ed7dea4ca5a43bbbb76cd6ca7b67636');
INSERT INTO "params" VALUES('batch_size','32','ac0fde9eeb85481ea5bcb37adb74a8de');
INSERT INTO "params" VALUES('lr','0.1','ac0fde9eeb85481ea5bcb37adb74a8de');
INSERT INTO "params" VALUES('seed','0','ac0fde9eeb85481ea5bcb37adb74a8de');
INSERT INTO "params" VALUES('model','resnet18','ac0fde9eeb85481ea5bcb37adb74a8de');
INSERT INTO "params" VALUES('batch_size','32','2ae5f96d8fc34f90a7d940852d8ebf0a');
INSERT INTO "params" VALUES('lr','0.1','2ae5f96d8fc34f90a7d940852d8ebf0a');
INSERT INTO "params" VALUES('seed','1','2ae5f96d8fc34f90a7d940852d8ebf0a');
INSERT INTO "params" VALUES('model','resnet18','2ae5f96d8fc34f90a7d940852d8ebf0a');
INSERT INTO "params" VALUES('batch_size','32','d098d7e78bcf43e5b75d349a9043e7bd');
INSERT INTO "params" VALUES('lr','0.1','d098d7e78bcf43e5b75d349a9043e7bd');
INSERT INTO "params" VALUES('seed','2','d098d7e78bcf43e5b75d349a9043e7bd');
INSERT INTO "params" VALUES('model','resnet18','d098d7e78bcf43e5b75d349a9043e7bd');
INSERT INTO "params" VALUES('batch_size','128','a2d10e7c6993409092cbc2ca066680e3');
INSERT INTO "params" VALUES('lr','0.03','a2d10e7c6993409092cbc2ca066680e3');
INSERT INTO "params" VALUES('seed','0','a2d10e7c6993409092cbc2ca066680e3');
INSERT INTO "params" VALUES('model','resnet18','a2d10e7c6993409092cbc2ca066680e3');
INSERT INTO "params" VALUES('batch_size','128','85858a5fddd94573bfddd3f83edad0c3');
INSERT INTO "params" VALUES('lr','0.03','85858a5fddd94573bfddd3f83edad0c3');
INSERT INTO "params" VALUES('seed','1','85858a5fddd94573bfddd3f83edad0c3');
INSERT INTO "params" VALUES('model','resnet18','85858a5fddd94573bfddd3f83edad0c3');
INSERT INTO "params" VALUES('batch_size','128','771b02b01e9a457ca57a71ae1bee2977');
INSERT INTO "params" VALUES('lr','0.03','771b02b01e9a457ca57a71ae1bee2977');
INSERT INTO "params" VALUES('seed','2','771b02b01e9a457ca57a71ae1bee2977');
INSERT INTO "params" VALUES('model','resnet18','771b02b01e9a457ca57a71ae1bee2977');
INSERT INTO "params" VALUES('batch_size','128','33a6d6a8e66c43f28bb9cdf2a5339a48');
INSERT INTO "params" VALUES('lr','0.1','33a6d6a8e66c43f28bb9cdf2a5339a48');
INSERT INTO "params" VALUES('seed','0','33a6d6a8e66c43f28bb9cdf2a5339a48');
INSERT INTO "params" VALUES('model','resnet18','33a6d6a8e66c43f28bb9cdf2a5339a48');
INSERT INTO "params" VALUES('batch_size','128','d7cc364da3e54b8fbbc9e5fead83219b');
INSERT INTO "params" VALUES('lr','0.1','d7cc364da3e54b8fbbc9e5fead83219b');
INSERT INTO "params" VALUES('seed','1','d7cc364da3e54b8fbbc9e5fead83219b');
INSERT INTO "params" VALUES('model','resnet18','d7cc364da3e54b8fbbc9e5fead83219b');
INSERT INTO "params" VALUES('batch_size','128','8cc92b0bda664a1ba59907033b878f4a');
INSERT INTO "params" VALUES('lr','0.1','8cc92b0bda664a1ba59907033b878f4a');
INSERT INTO "params" VALUES('seed','2','8cc92b0bda664a1ba59907033b878f4a');
INSERT INTO "params" VALUES('model','resnet18','8cc92b0bda664a1ba59907033b878f4a');
CREATE TABLE "runs" (
	run_uuid VARCHAR(32) NOT NULL, 
	name VARCHAR(250), 
	source_type VARCHAR(20), 
	source_name VARCHAR(500), 
	entry_point_name VARCHAR(50), 
	user_id VARCHAR(256), 
	status VARCHAR(9), 
	start_time BIGINT, 
	end_time BIGINT, 
	source_version VARCHAR(50), 
	lifecycle_stage VARCHAR(20), 
	artifact_uri VARCHAR(200), 
	experiment_id INTEGER, deleted_time BIGINT, 
	CONSTRAINT run_pk PRIMARY KEY (run_uuid), 
	CONSTRAINT runs_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), 
	CONSTRAINT source_type CHECK (source_type IN ('NOTEBOOK', 'JOB', 'LOCAL', 'UNKNOWN', 'PROJECT')), 
	FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id), 
	CHECK (status IN ('SCHEDULED', 'FAILED', 'FINISHED', 'RUNNING', 'KILLED'))
);
INSERT INTO "runs" VALUES('2a201fd4e90648cdbab9286ead069e3e','adorable-whale-777','UNKNOWN','','','unknown','FINISHED',1700000000001,1700000100000,'','active','file:///artifacts/2a201fd4e90648cdbab9286ead069e3e/artifacts',1,NULL);
INSERT INTO "runs" VALUES('16226fc38c9f41399cb7660685f25e34','valuable-deer-774','UNKNOWN','','','unknown','FINISHED',1700000000002,1700000100000,'','active','file:///artifacts/16226fc38c9f41399cb7660685f25e34/artifacts',1,NULL);
INSERT INTO "runs" VALUES('2ed7dea4ca5a43bbbb76cd6ca7b67636','chill-cat-643','UNKNOWN','','','unknown','FINISHED',1700000000003,1700000100000,'','active','file:///artifacts/2ed7dea4ca5a43bbbb76cd6ca7b67636/artifacts',1,NULL);
INSERT INTO "runs" VALUES('ac0fde9eeb85481ea5bcb37adb74a8de','popular-mole-955','UNKNOWN','','','unknown','FINISHED',1700000000004,1700000100000,'','active','file:///artifacts/ac0fde9eeb85481ea5bcb37adb74a8de/artifacts',1,NULL);
INSERT INTO "runs" VALUES('2ae5f96d8fc34f90a7d940852d8ebf0a','wistful-lamb-154','UNKNOWN','','','unknown','FINISHED',1700000000005,1700000100000,'','active','file:///artifacts/2ae5f96d8fc34f90a7d940852d8ebf0a/artifacts',1,NULL);
INSERT INTO "runs" VALUES('d098d7e78bcf43e5b75d349a9043e7bd','abrasive-conch-792','UNKNOWN','','','unknown','FINISHED',1700000000006,1700000100000,'','active','file:///artifacts/d098d7e78bcf43e5b75d349a9043e7bd/artifacts',1,NULL);
INSERT INTO "runs" VALUES('a2d10e7c6993409092cbc2ca066680e3','colorful-deer-512','UNKNOWN','','','unknown','FINISHED',1700000000007,1700000100000,'','active','file:///artifacts/a2d10e7c6993409092cbc2ca066680e3/artifacts',1,NULL);
INSERT INTO "runs" VALUES('85858a5fddd94573bfddd3f83edad0c3','silent-crow-958','UNKNOWN','','','unknown','FINISHED',1700000000008,1700000100000,'','active','file:///artifacts/85858a5fddd94573bfddd3f83edad0c3/artifacts',1,NULL);
INSERT INTO "runs" VALUES('771b02b01e9a457ca57a71ae1bee2977','popular-colt-173','UNKNOWN','','','unknown','FINISHED',1700000000009,1700000100000,'','active','file:///artifacts/771b02b01e9a457ca57a71ae1bee2977/artifacts',1,NULL);
INSERT INTO "runs" VALUES('33a6d6a8e66c43f28bb9cdf2a5339a48','vaunted-bear-967','UNKNOWN','','','unknown','FINISHED',1700000000010,1700000100000,'','active','file:///artifacts/33a6d6a8e66c43f28bb9cdf2a5339a48/artifacts',1,NULL);
INSERT INTO "runs" VALUES('d7cc364da3e54b8fbbc9e5fead83219b','honorable-auk-21','UNKNOWN','','','unknown','FINISHED',1700000000011,1700000100000,'','active','file:///artifacts/d7cc364da3e54b8fbbc9e5fead83219b/artifacts',1,NULL);
INSERT INTO "runs" VALUES('8cc92b0bda664a1ba59907033b878f4a','merciful-panda-587','UNKNOWN','','','unknown','FINISHED',1700000000012,1700000100000,'','active','file:///artifacts/8cc92b0bda664a1ba59907033b878f4a/artifacts',1,NULL);
CREATE TABLE "tags" (
	"key" VARCHAR(250) NOT NULL, 
	value VARCHAR(8000), 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT tag_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO "tags" VALUES('gpu','A100','2a201fd4e90648cdbab9286ead069e3e');
INSERT INTO "tags" VALUES('mlflow.runName','adorable-whale-777','2a201fd4e90648cdbab9286ead069e3e');
INSERT INTO "tags" VALUES('gpu','A100','16226fc38c9f41399cb7660685f25e34');
INSERT INTO "tags" VALUES('mlflow.runName','valuable-deer-774','16226fc38c9f41399cb7660685f25e34');
INSERT INTO "tags" VALUES('gpu','A100','2ed7dea4ca5a43bbbb76cd6ca7b67636');
INSERT INTO "tags" VALUES('mlflow.runName','chill-cat-643','2ed7dea4ca5a43bbbb76cd6ca7b67636');
INSERT INTO "tags" VALUES('gpu','A100','ac0fde9eeb85481ea5bcb37adb74a8de');
INSERT INTO "tags" VALUES('mlflow.runName','popular-mole-955','ac0fde9eeb85481ea5bcb37adb74a8de');
INSERT INTO "tags" VALUES('gpu','A100','2ae5f96d8fc34f90a7d940852d8ebf0a');
INSERT INTO "tags" VALUES('mlflow.runName','wistful-lamb-154','2ae5f96d8fc34f90a7d940852d8ebf0a');
INSERT INTO "tags" VALUES('gpu','A100','d098d7e78bcf43e5b75d349a9043e7bd');
INSERT INTO "tags" VALUES('mlflow.runName','abrasive-conch-792','d098d7e78bcf43e5b75d349a9043e7bd');
INSERT INTO "tags" VALUES('gpu','A100','a2d10e7c6993409092cbc2ca066680e3');
INSERT INTO "tags" VALUES('mlflow.runName','colorful-deer-512','a2d10e7c6993409092cbc2ca066680e3');
INSERT INTO "tags" VALUES('gpu','A100','85858a5fddd94573bfddd3f83edad0c3');
INSERT INTO "tags" VALUES('mlflow.runName','silent-crow-958','85858a5fddd94573bfddd3f83edad0c3');
INSERT INTO "tags" VALUES('gpu','A100','771b02b01e9a457ca57a71ae1bee2977');
INSERT INTO "tags" VALUES('mlflow.runName','popular-colt-173','771b02b01e9a457ca57a71ae1bee2977');
INSERT INTO "tags" VALUES('gpu','A100','33a6d6a8e66c43f28bb9cdf2a5339a48');
INSERT INTO "tags" VALUES('mlflow.runName','vaunted-bear-967','33a6d6a8e66c43f28bb9cdf2a5339a48');
INSERT INTO "tags" VALUES('gpu','A100','d7cc364da3e54b8fbbc9e5fead83219b');
INSERT INTO "tags" VALUES('mlflow.runName','honorable-auk-21','d7cc364da3e54b8fbbc9e5fead83219b');
INSERT INTO "tags" VALUES('gpu','A100','8cc92b0bda664a1ba59907033b878f4a');
INSERT INTO "tags" VALUES('mlflow.runName','merciful-panda-587','8cc92b0bda664a1ba59907033b878f4a');
