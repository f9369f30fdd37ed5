"""The receipt: what a recompose did, and the proof that nothing else moved."""

from __future__ import annotations

import msgspec


class DigestChange(msgspec.Struct, frozen=True, kw_only=True):
    """The weights digest before and after the router was trained; one that moved refuses (law 1).

    It is over tensors alone. The build digest, in the lock and in `Composition`, is over the whole
    package.

    Attributes:
        before: Of the tensors before.
        after: Of the tensors after.
    """

    before: str
    after: str


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """An installed package that was not attached, and why.

    Attributes:
        id: The expert's id.
        code: A stable word for the failure.
        reason: The failure as one line.
    """

    id: str
    code: str
    reason: str


class MinimaxReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a robust router defends against, measured on gate rows (nats).

    Attributes:
        mixture: λ*, the mixture of domains it was trained against.
        regrets: By domain: the composition's loss less that of the domain's own expert.
        worst: The domain with the largest regret.
        regret: Its regret.
        gap: Worst regret less the regret under λ*: an estimate of how far the game is from its
            value, not a certificate.
    """

    mixture: dict[str, float]
    regrets: dict[str, float]
    worst: str
    regret: float
    gap: float


class RouterReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """How the router came to be.

    Attributes:
        kind: Its kind, with options.
        level: How much of it was retrained: ``zero``, ``row`` or ``full``.
        seconds: Spent on training it.
        rows: Fit rows it was trained on.
        digest: Of its weights.
        columns: What it weighs, in the order of its rows.
        moved: Columns whose weights were trained.
        robust: What it defends against, for kinds that do.
        tried: Where the kind was chosen: the share of held fit rows that each kind sent to their
            own expert. Empty where it was asked for by name.
        shares: Of the texts that it expects, by column: those that it learnt under, or `prior`.
        prior: Whose texts it was asked to expect; null where nobody asked.
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

    Attributes:
        fall: How much less of its rows is answered rightly.
        reference: What linear discriminants over the same cards' labels lose, with no expert.
        excess: The fall less that of the reference.
        error: The standard error of the excess.
        overlap: How many of a newcomer's rows lie where the densest fifth of the domain's do, as a
            multiple of what the domain's own rows have.
        reverse: The same of the domain's rows among a newcomer's, by the newcomer's card.
        taken: Share of rows that were answered rightly and surely, and wrongly by a newcomer now.
        mass: How much less probable the right label is, in the mean.
        copied: Largest share of a newcomer's shown rows that a member's card has under other
            labels.
        claimed: Share of rows lost by a newcomer's number of rows, where it says it has more than
            any member: answers beside those with as many as the largest member has.
    """

    fall: float
    reference: float
    excess: float
    error: float
    overlap: float
    reverse: float
    taken: float
    mass: float
    copied: float = 0.0
    claimed: float = 0.0


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy on the cards' gate rows, 0–1.

    Attributes:
        before: Of the previous composition, for the domains both have; None where there is none.
        after: Of this composition, by domain.
        overall: Of this composition over all gate rows.
        oracle: With each row's own expert at weight 1.
        rows: Gate rows by domain.
        own: Of each domain's own expert alone, by domain; none in receipts written before.
        excess: What the domains that both have lose to newcomers, where there are any.
    """

    before: dict[str, float] | None
    after: dict[str, float]
    overall: float | None
    oracle: float | None
    rows: dict[str, int]
    own: dict[str, float] = {}
    excess: dict[str, ExcessHarm] = {}


class Decline(msgspec.Struct, frozen=True, kw_only=True):
    """What texts are declined: those less familiar than nearly all gate rows.

    Attributes:
        share: ε: at most so many of the experts' own texts are declined, 0–1.
        rows: Gate rows that each expert answers, by expert.
        thresholds: The familiarity below which texts that an expert answers are declined, by
            expert; null where nothing is.
        needed: Gate rows that the share needs; experts with fewer share a threshold.
        warnings: Where rows are too few.
    """

    share: float
    rows: dict[str, int]
    thresholds: dict[str, float | None]
    needed: int
    warnings: tuple[str, ...] = ()


class Bits(msgspec.Struct, frozen=True, kw_only=True):
    """Bits per byte on the cards' gate passages, where text is generated; less is better.

    Attributes:
        before: Of the previous composition, for the domains both have; None where there is none.
        after: Of this composition, by domain.
        oracle: Of each domain's own expert alone.
        bytes: Bytes of the gate passages, by domain.
    """

    before: dict[str, float] | None
    after: dict[str, float]
    oracle: dict[str, float]
    bytes: dict[str, int]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What the routes of labelled rows look like.

    Attributes:
        rows: How many rows.
        usage: Mean weight by column.
        entropy: Of the experts' usage, 0 (one takes all) … 1 (equal shares).
        expected_entropy: What it would be if every row went to its own expert.
        dead: Experts with rows of their own that get next to no weight.
        distance: Mean distance of two experts' answers, in units of an answer's norm; None for
            one expert.
        loudness: ‖Δ‖ in logits of every expert on its own rows.
        flips: Share of rows whose heaviest column is another one than in the previous generation,
            of the rows whose expert both have; None without one.
        warnings: What is wrong and what to try.
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
    """What `recompose` prints with ``--json`` and every generation keeps.

    Attributes:
        schema: The version of this schema.
        generation: The number it was published under; null for a dry run.
        parent: The generation before it; null for the first.
        router: How the router came to be.
        backbone: That the backbone is what it was.
        experts: That each expert is what it was, by id.
        left_out: Installed packages that were not attached.
        withdrawn: Experts of the parent that are not installed any more.
        not_gated: Experts whose card has no rows to judge on.
        accuracy: On the cards' gate rows; of next tokens where text is generated.
        seconds: In all.
        seed: Where randomness came from.
        health: How the weight is spread over the gate rows.
        bits: Bits per byte, where text is generated.
        decline: What texts are declined; null where no share of them was given.
        steps: Where the seconds went: ``digests`` of all weights, before and after; ``learn``, the
            texts encoded and what the router reads of them; ``train``, the router; ``judge``, on
            gate rows.
        ported: Experts that were carried over from another backbone, each with the digest of the
            build its author made.
        ranks: The rank of each expert that is served at less than its own.
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
    ranks: dict[str, int] = {}

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
