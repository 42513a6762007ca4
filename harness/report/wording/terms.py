"""The terms of a run in words: whose they were, for the line of the verdict and below each table."""

from collections.abc import Sequence

from packproof.base.wording import plural
from packproof.harness.report.events import Verdict
from packproof.harness.report.wording.conclusions import inferred_domain, limits
from packproof.properties.contracts import terms_text


def own_terms_text(verdicts: Sequence[Verdict]) -> str:
    """What one kernel has set itself, declared or by refusals: "d == 1, w == 1; no gradients". "" for nothing."""
    counted = [verdict for verdict in verdicts if verdict.cell.counts]
    parts = [terms_text(dict.fromkeys(t for v in counted for t in v.terms if t.source == "kernel"))]
    if domain := inferred_domain(counted):
        parts.append(f"refuses calls outside of {', '.join(domain)}")
    elif kernel_limits := limits(counted):
        parts.append(f"refuses {plural(sum(limit.count for limit in kernel_limits), 'call')}")
    return "; ".join(filter(None, parts))


def contract_title(verdicts: Sequence[Verdict]) -> str:
    """The contract by which the verdicts were reached, and what its caller left out; "" without one."""
    terms = dict.fromkeys(term for verdict in verdicts for term in verdict.terms)
    titles = [term.text for term in terms if term.subject == "contract"]
    left_out = terms_text(term for term in terms if term.source == "caller")
    return f"{', '.join(titles)}{f', in part ({left_out})' if left_out else ''}" if titles else ""


def terms_clause(verdicts: Sequence[Verdict]) -> str:
    """The clause of a verdict: under which contract, and on which terms of the kernels; "" if they set none."""
    title = contract_title(verdicts)
    clause = f", under {title}" if title else ""
    kernels: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        kernels.setdefault((verdict.cell.op, verdict.cell.target, verdict.cell.device), []).append(verdict)
    texts = [text for group in kernels.values() if (text := own_terms_text(group))]
    if not texts:
        return clause
    if len(kernels) == 1:
        return f"{clause}, on the kernel's own terms ({texts[0]})"
    return f"{clause}, on the own terms of {len(texts)} of {len(kernels)} kernels (below their tables)"
