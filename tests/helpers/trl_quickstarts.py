"""What TRL's quick-starts name, made on the spot: folders called as their models and data sets are on the hub.

Both `from_pretrained` and `load_dataset` take a folder of that name in the current folder, so that a script of TRL's
documentation runs there to the letter, without a network. Columns and their types are those of the published sets.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

#: The scripts of TRL 1.16's documentation, by objective; what they leave out has TRL's defaults.
SCRIPTS = {
    "dpo": """
from trl import DPOTrainer
from datasets import load_dataset
trainer = DPOTrainer(
    model="Qwen/Qwen3-0.6B",
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
)
trainer.train()
""",
    "kto": """
from datasets import load_dataset
from trl import KTOConfig, KTOTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2-0.5B-Instruct")
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2-0.5B-Instruct")
train_dataset = load_dataset("trl-lib/kto-mix-14k", split="train")
training_args = KTOConfig(output_dir="Qwen2-0.5B-KTO")
trainer = KTOTrainer(model=model, args=training_args, processing_class=tokenizer, train_dataset=train_dataset)
trainer.train()
""",
    "grpo": """
from datasets import load_dataset
from trl import GRPOTrainer
from trl.rewards import accuracy_reward
dataset = load_dataset("trl-lib/DeepMath-103K", split="train")
trainer = GRPOTrainer(
    model="Qwen/Qwen2-0.5B-Instruct",
    reward_funcs=accuracy_reward,
    train_dataset=dataset,
)
trainer.train()
""",
}
#: Runs a script without a GPU: TRL's defaults ask for one. Nothing else of the script or of the defaults is changed.
ON_CPU = """
import runpy, sys
from transformers import TrainingArguments
begin = TrainingArguments.__post_init__
def on_cpu(self):
    self.use_cpu = True
    begin(self)
TrainingArguments.__post_init__ = on_cpu
runpy.run_path(sys.argv[1], run_name="__main__")
"""
#: ChatML, as the models of the quick-starts have it, with the line end behind the end token.
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: A reward file as users of TRL have it: the number of unique letters, of answers as messages or as texts.
LETTERS = '''
def reward_num_unique_letters(completions, **kwargs):
    """Reward function that rewards completions with more unique letters."""
    contents = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [float(len(set(content))) for content in contents]
'''


def said(role: str, text: str) -> dict[str, str]:
    """Return a message."""
    return {"role": role, "content": text}


def rows() -> dict[str, list[dict[str, Any]]]:
    """Return some rows of each data set, of the columns that the published ones have."""
    draw = random.Random(0)
    sums = [(draw.randrange(90), draw.randrange(90)) for _ in range(32)]
    asked = [said("user", f"What is {a} + {b}?") for a, b in sums]
    return {
        "ultrafeedback_binarized": [
            {
                "chosen": [question, said("assistant", f"It is {a + b}.")],
                "rejected": [question, said("assistant", f"It is {a + b + 1}, I think.")],
                "score_chosen": 8.0,
                "score_rejected": 3.5,
            }
            for question, (a, b) in zip(asked, sums, strict=True)
        ],
        "kto-mix-14k": [
            {"prompt": [question], "completion": [said("assistant", f"It is {a + b + n % 2}.")], "label": n % 2 == 0}
            for n, (question, (a, b)) in enumerate(zip(asked, sums, strict=True))
        ],
        "DeepMath-103K": [
            {"prompt": [said("user", f"Evaluate ${a} + {b}$.")], "solution": f"${a + b}$"} for a, b in sums[:4]
        ],
    }


def make(folder: Path) -> None:
    """Make the data sets, two tiny models with tokenizers trained on them, and a file of rewards."""
    from datasets import Dataset
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

    made = rows()
    for name, some in made.items():
        path = folder / file_of(name)
        path.parent.mkdir(parents=True)
        Dataset.from_list(some).to_parquet(path)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer, plain.decoder = level, decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=level.alphabet(), show_progress=False
    )
    plain.train_from_iterator([str(some) for some in made.values()], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = CHATML
    size = {
        **{"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None},
        **{"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id},
    }
    for name, config in (("Qwen3-0.6B", Qwen3Config(head_dim=8, **size)), ("Qwen2-0.5B-Instruct", Qwen2Config(**size))):
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / "Qwen" / name)
        tokenizer.save_pretrained(folder / "Qwen" / name)
    (folder / "rewards.py").write_text(LETTERS, encoding="utf-8")


def file_of(name: str) -> str:
    """Return where the rows of a data set lie, from the folder."""
    return f"trl-lib/{name}/data/train-00000-of-00001.parquet"
