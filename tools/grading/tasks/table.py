"""The table of the tasks: an op, a correct kernel, and one with a bug for each pass.

The correct kernel shares no code with the reference; both come from the museum, beside the reports of their bugs.
"""

from dataclasses import dataclass

CORE_LEVELS, LOSS_LEVELS = ("easy", "medium", "hard"), ("medium",)


@dataclass(frozen=True)
class TaskRow:
    """The tasks of one op."""

    op: str
    right: str
    """A correct kernel of the museum, as "module:function" in it."""
    wrong_forward: str
    """The entry of a bug in its values; "" without a forward task."""
    wrong_backward: str
    """The entry of a bug in its gradients, or in both."""
    levels: tuple[str, ...] = CORE_LEVELS


def _loss(op: str, form: str, wrong: str, wrong_backward: str = "") -> TaskRow:
    return TaskRow(op, f"losses.{form}:{op}_{_FORMS[form]}", wrong, wrong_backward or wrong, LOSS_LEVELS)


_FORMS = {"vocabulary_forms": "online", "policy_forms": "vectorised", "router_forms": "scattered"}
ROWS = (
    TaskRow("causal_conv1d", "convolution:correct", "C1", "C5"),
    TaskRow("selective_scan", "scan:correct", "S1", "S15"),
    TaskRow("ssd", "ssd:correct", "D2", "D14"),
    TaskRow("rope", "rotary:correct", "R1", "R5"),
    TaskRow("attention", "attention:correct", "A1", "A4"),
    _loss("cross_entropy", "vocabulary_forms", "N3"),
    _loss("cross_entropy_sum", "vocabulary_forms", "N1"),
    _loss("cross_entropy_sequences", "vocabulary_forms", "", "N6"),
    _loss("linear_cross_entropy", "vocabulary_forms", "N14"),
    _loss("token_logprobs", "vocabulary_forms", "N2", "N11"),
    _loss("multi_token_cross_entropy", "vocabulary_forms", "N23"),
    _loss("policy_loss", "policy_forms", "N18"),
    _loss("policy_loss_sequences", "policy_forms", "N16"),
    _loss("dpo_loss", "policy_forms", "N21"),
    _loss("router_balance_loss_pack", "router_forms", "N28"),
    _loss("router_balance_loss_sequences", "router_forms", "N25"),
    _loss("router_z_loss", "router_forms", "N27"),
)
