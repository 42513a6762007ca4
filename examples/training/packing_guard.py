"""A callback for the Trainer of transformers and those of TRL: the first packed batch stops a run that leaks.

trainer = SFTTrainer(..., callbacks=[PackingGuard()])
"""

from transformers import TrainerCallback

import packproof


class PackingGuard(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        packproof.guard(model)
