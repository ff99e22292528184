"""`python -m tools.demo_model`: train the demo model from its seed and export it."""

import argparse
from pathlib import Path

import torch

from tools.demo_model.export import export_both
from tools.demo_model.train import Plan, load, run

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Train (unless a checkpoint is to be exported as it is) and write both files."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model", description=__doc__)
    parser.add_argument("--steps", type=int, default=Plan.steps, help="updates to train for (default: %(default)s)")
    parser.add_argument("--decay-steps", type=int, default=Plan.decay_steps,
                        help="how many of them, at the end, the learning rate falls (%(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=Plan.seed, help="of the corpus and the weights (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; the sums depend on it (%(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "demo_model",
                        help="folder for the checkpoint and the Q8_0 file (%(default)s)")  # fmt: skip
    parser.add_argument("--demo", type=Path, default=ROOT / "interface" / "catalog" / "demo.gguf",
                        help="where the Q4_K mix goes (%(default)s)")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--export-only", action="store_true", help="export the checkpoint in --out without training")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.pt"
    if options.export_only:
        trained = load(checkpoint)
    else:
        plan = Plan(steps=options.steps, decay_steps=options.decay_steps, seed=options.seed)
        trained = run(plan, checkpoint, resume=options.resume)
    print(f"exporting the weights of step {trained.step}")
    for path, size in export_both(trained.model, trained.vocabulary, options.demo, options.out).items():
        print(f"{path}: {size} bytes")


if __name__ == "__main__":
    main()
