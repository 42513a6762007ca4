"""The properties of a module, by name, in the order in which they are judged."""

from collections.abc import Mapping

from packproof.models.laws.judges import Judge, isolation, packing, padding
from packproof.models.laws.loss_judge import loss
from packproof.models.laws.mode_judge import modes

JUDGES: Mapping[str, Judge] = {
    "isolation": isolation,
    "packing": packing,
    "padding": padding,
    "loss": loss,
    "modes": modes,
}
