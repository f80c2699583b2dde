"""The command line with a training run that halts for ever before the step of FANIN_TEST_HALT."""

import os
import time

from fanin.cli import main
from fanin.trainer.training_run import TrainingRun

take_step = TrainingRun._step


def step(run, *arguments):
    while run.progress.step == int(os.environ["FANIN_TEST_HALT"]):
        time.sleep(1)
    take_step(run, *arguments)


TrainingRun._step = step

if __name__ == "__main__":
    main()
