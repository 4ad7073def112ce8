"""Changes of the records' tables, one script a version. A script is never changed once its version was released."""
