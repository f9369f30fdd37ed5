"""The receipt: a record of a recompose, with the proof that only the router changed."""

from __future__ import annotations

import msgspec


class DigestChange(msgspec.Struct, frozen=True, kw_only=True):
    """The weights digest before and after router training; a difference is refused (law 1).

    It covers tensors alone. The build digest, in the lock and in `Composition`, covers the whole
    package.

    Attributes:
        before: The digest of the tensors before training.
        after: The digest of the tensors after training.
    """

    before: str
    after: str


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """An installed package that was not attached, and why.

    Attributes:
        id: The expert's id.
        code: A stable code for the failure.
        reason: The failure as one line.
    """

    id: str
    code: str
    reason: str


class MinimaxReport(msgspec.Struct, frozen=True, kw_only=True):
    """The regrets that a robust router minimises, measured on gate rows (nats).

    Attributes:
        mixture: λ*, the mixture of domains it was trained against.
        regrets: By domain: the composition's loss minus that of the domain's own expert.
        worst: The domain with the largest regret.
        regret: The regret of that domain.
        gap: Worst regret minus the regret under λ*: an estimate of the distance from the value of
            the game, not a certificate.
    """

    mixture: dict[str, float]
    regrets: dict[str, float]
    worst: str
    regret: float
    gap: float


class RouterReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """How the router was made.

    Attributes:
        kind: Its kind, with options.
        level: How much of it was retrained: ``zero``, ``row`` or ``full``.
        seconds: The training time.
        rows: The number of fit rows it was trained on.
        digest: The digest of its weights.
        columns: Its columns, in the order of its rows.
        moved: Columns whose weights were trained.
        robust: The regrets it minimises, for kinds that do.
        tried: If the kind was chosen automatically: the share of held-out fit rows that each kind
            routed to their own expert. Empty if the kind was given by name.
        shares: The expected shares of texts, by column: those of its training, or `prior`.
        prior: The shares of texts that were requested; null if none were.
    """

    kind: str
    level: str
    seconds: float
    rows: int
    digest: str
    columns: tuple[str, ...]
    moved: tuple[str, ...]
    robust: MinimaxReport | None = None
    tried: dict[str, float] = {}
    shares: dict[str, float] = {}
    prior: str | None = None


class ExcessHarm(msgspec.Struct, frozen=True, kw_only=True):
    """What a domain loses to newcomers, on its gate rows; shares, 0–1 (`core.composition.harm`).

    A member whose package changed counts as a newcomer, but there is no excuse for it.

    Attributes:
        fall: The drop in accuracy.
        reference: The same drop for linear discriminants over the cards' labels, without experts.
        excess: `fall` minus `reference`.
        error: The standard error of the excess; 0 where members changed and nobody joined.
        overlap: The share of a newcomer's gate rows that the reference takes for the domain's, plus
            the share of the domain's that it takes for the newcomer's, or twice the latter: 1 for
            rows of one domain.
        blur: The standard error of the overlap.
        taken: The share of rows that were answered correctly with high confidence before, and
            wrongly by a newcomer now, and that the reference does not lose.
        mass: The mean drop in the probability of the right label.
        mass_error: The standard error of `mass`.
        copied: The largest share of a newcomer's card rows that a member's card has under other
            labels.
        claimed: The share of rows lost to a newcomer's claimed number of rows, if larger than any
            member's: the answers are compared with those for as many as the largest member has.
    """

    fall: float
    reference: float
    excess: float
    error: float
    overlap: float
    blur: float
    taken: float
    mass: float
    mass_error: float = 0.0
    copied: float = 0.0
    claimed: float = 0.0


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy on a domain's gate rows before and after, 0–1.

    Attributes:
        before: The previous composition's.
        after: This composition's.
        rows: The number of gate rows.
    """

    before: float
    after: float
    rows: int


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy on the cards' gate rows, 0–1.

    Attributes:
        before: The previous composition's, on the domains of both; None if there is none.
        after: This composition's, by domain.
        overall: This composition's over all gate rows.
        oracle: Under oracle routing: each row's own expert at weight 1.
        rows: The number of gate rows by domain.
        own: Each domain's own expert's, alone, by domain; empty in older receipts.
        excess: What the domains of both compositions lose to newcomers, if there are any.
        withdrawn: What withdrawn experts' domains lose, by expert. It refuses nothing.
        updated: What updates lose on the rows of the card before, by expert; a new card alone would
            not show it.
        fallen: What each domain has lost in all, beyond what newcomers are excused, since its own
            expert was added or changed, or a composition was accepted by ``--accept``.
    """

    before: dict[str, float] | None
    after: dict[str, float]
    overall: float | None
    oracle: float | None
    rows: dict[str, int]
    own: dict[str, float] = {}
    excess: dict[str, ExcessHarm] = {}
    withdrawn: dict[str, Comparison] = {}
    updated: dict[str, Comparison] = {}
    fallen: dict[str, float] = {}


class Decline(msgspec.Struct, frozen=True, kw_only=True):
    """Which texts are declined: those less familiar than nearly all gate rows.

    Attributes:
        share: ε: the largest share of the experts' own texts that is declined, 0–1.
        rows: The number of gate rows that each expert answers, by expert.
        thresholds: The familiarity below which a text is declined, by the expert that answers it;
            null if nothing is declined.
        needed: The number of gate rows that the share requires; experts with fewer share a
            threshold.
        warnings: Experts with too few rows.
    """

    share: float
    rows: dict[str, int]
    thresholds: dict[str, float | None]
    needed: int
    warnings: tuple[str, ...] = ()


class Bits(msgspec.Struct, frozen=True, kw_only=True):
    """Bits per byte on the cards' gate passages, in generation; lower is better.

    Attributes:
        before: The previous composition's, on the domains of both; None if there is none.
        after: This composition's, by domain.
        oracle: Each domain's own expert's, alone.
        bytes: The number of bytes of the gate passages, by domain.
    """

    before: dict[str, float] | None
    after: dict[str, float]
    oracle: dict[str, float]
    bytes: dict[str, int]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the routing of labelled rows.

    Attributes:
        rows: The number of rows.
        usage: Mean weight by column.
        entropy: The entropy of the experts' usage, from 0 (one expert takes all) to 1 (equal
            shares).
        expected_entropy: The same if every row went to its own expert.
        dead: Experts with rows of their own whose weight is close to zero.
        distance: Mean distance of two experts' answers, in units of an answer's norm; None for
            one expert.
        loudness: ‖Δ‖ in logits of every expert on its own rows.
        flips: The share of rows whose highest-weighted column has changed since the previous
            generation, among rows whose expert is in both; None without one.
        warnings: Problems found, and what to try.
    """

    rows: int
    usage: dict[str, float]
    entropy: float
    expected_entropy: float
    dead: tuple[str, ...]
    distance: float | None
    loudness: dict[str, float]
    flips: float | None
    warnings: tuple[str, ...]


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The record that `recompose` prints with ``--json`` and every generation keeps.

    Attributes:
        schema: The version of this schema.
        generation: The number it was published under; null for a dry run.
        parent: The generation before it; null for the first.
        router: How the router was made.
        backbone: The backbone's weights digest before and after.
        experts: Each expert's weights digest before and after, by id.
        left_out: Installed packages that were not attached.
        withdrawn: Experts of the parent that were uninstalled, disabled or removed.
        not_gated: Experts whose card has no gate rows.
        accuracy: Accuracy on the cards' gate rows; of next tokens in generation.
        seconds: The total time.
        seed: The seed of all randomness.
        health: How the weight is distributed over the gate rows.
        bits: Bits per byte, in generation.
        decline: Which texts are declined; null if no share was given.
        steps: Time by step: ``digests`` of all weights, before and after; ``learn``, encoding of
            texts and the router's inputs; ``train``, the router; ``judge``, evaluation on gate
            rows.
        ported: Experts that were ported from another backbone, each with the digest of the build
            that its author made.
        drift: Experts that were composed from the store although what is installed differs:
            ``missing``, ``disabled`` or ``changed``, by id.
    """

    schema: str = "redhost.receipt/1"
    generation: int | None
    parent: int | None
    router: RouterReceipt
    backbone: DigestChange
    experts: dict[str, DigestChange]
    left_out: tuple[LeftOut, ...]
    withdrawn: tuple[str, ...]
    not_gated: tuple[str, ...]
    accuracy: Accuracy
    seconds: float
    seed: int
    health: Health | None = None
    bits: Bits | None = None
    decline: Decline | None = None
    steps: dict[str, float] = {}
    ported: dict[str, str] = {}
    drift: dict[str, str] = {}

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td>{d}</td><td>{self.accuracy.rows[d]}</td><td>{a:.3f}</td></tr>"
            for d, a in self.accuracy.after.items()
        )
        return (
            f"<p>generation {self.generation}, router {self.router.kind} "
            f"({self.router.level}, {self.router.seconds:.2f} s)</p>"
            f"<table><tr><th>domain</th><th>gate rows</th><th>accuracy</th></tr>{cells}</table>"
        )
