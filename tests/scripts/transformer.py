"""The Trainer of transformers with random weights: GPT-2, BERT or ViT."""

import argparse

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import sweep

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="gpt2")
parser.add_argument("--out", default="out")
args = parser.parse_args()

trial = sweep.trial()
torch.manual_seed(0)
SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


def make(count: int) -> list[dict[str, torch.Tensor]]:
    if args.model == "vit":
        return [{"pixel_values": torch.randn(1, 8, 8), "labels": torch.tensor(i % 2)} for i in range(count)]
    rows = torch.randint(0, 50, (count, 16))
    return [{"input_ids": row, "labels": row if args.model == "gpt2" else row[0] % 2} for row in rows]


if args.model == "gpt2":
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=2))
elif args.model == "bert":
    model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **SIZES))
else:
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=2, **SIZES))

arguments = TrainingArguments(
    args.out, num_train_epochs=3, eval_strategy="epoch", report_to="none", save_strategy="no", use_cpu=True,
    disable_tqdm=True, **trial.training_arguments(),
)  # fmt: skip
trainer = Trainer(
    model, arguments, train_dataset=make(300), eval_dataset=make(60), callbacks=[trial.transformers("eval_loss")]
)
trainer.train()
