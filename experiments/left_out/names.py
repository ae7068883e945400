"""Names of the systems."""

from __future__ import annotations

from experiments.harness.results import choice

BM25 = "BM25"
BM25_CONTEXT = "BM25, context in the text"
DUAL = "dual-encoder"
TITLE_IN_TEXT = "title in the text"
LATE = "late chunking"
MEAN = "GraphMean"
MEAN_FIXED = "GraphMean, fixed default weights"  # a GNN-encoder starts here
MEAN_ELSEWHERE = "GraphMean, fixed weights from elsewhere"
MEAN_HOME = "GraphMean, fitted at home"
MEAN_BEST = "GraphMean, best fixed weights (chosen on the test queries)"
GNN_ELSEWHERE = "GNNEncoder, trained elsewhere"
GNN_HOME = "GNNEncoder, trained at home"
GNN_TUNED = "GNNEncoder, trained at home, then tuned"
MAXSIM = "BM25@100 >> GraphMaxSim"
HGAT = "BM25@100 >> HGAT"
HYBRID_MAXSIM = "Hybrid, BM25 with context, @100 >> GraphMaxSim"
HYBRID_HGAT = "Hybrid, BM25 with context, @100 >> HGAT"
HYBRID_MATCHES = "Hybrid, BM25 with context, @100 >> HGAT, layers not trained"
HYBRID_GNN = "Hybrid, BM25 with context and GNNEncoder"
FUSED_MAXSIM = "Hybrid of the same and its @100 >> GraphMaxSim"
FUSED_HGAT = "Hybrid of the same and its @100 >> HGAT"
CROSS_ENCODER = "Hybrid, BM25 with context, @20 >> CrossEncoder"
LGRE = "Hybrid, BM25 with context, @20 >> LGRe"
FUSED_CROSS_ENCODER = "Hybrid of the same and its @20 >> CrossEncoder"
FUSED_LGRE = "Hybrid of the same and its @20 >> LGRe"
HYBRID = "Hybrid"
HYBRID_CONTEXT = "Hybrid, BM25 with context"
HYBRID_HOME = "Hybrid, fitted at home"
HYBRID_PLAIN = "Hybrid, BM25 and dual-encoder"
HYBRID_UNTITLED = "Hybrid, BM25 with context and dual-encoder"
HYBRID_LATE = "Hybrid, BM25 with context and late chunking"
HYBRID_TITLED = "Hybrid, BM25 with context and title in the text"  # what anyone can build
HYBRID_EVIDENCE = "Hybrid, BM25 with context, and DocumentEvidence"
TITLED_EVIDENCE = "Hybrid, BM25 with context and title in the text, and DocumentEvidence"
TITLED_HOME = (
    "Hybrid, BM25 with context and title in the text, and DocumentEvidence, fitted at home"
)
HYBRID_UNANSWERED = "Hybrid, titles alone, BM25 and GraphMean"  # no queries have been answered
HYBRID_FIELD = (
    "Hybrid, titles alone, three times, BM25 and GraphMean"  # titles as a field with weight 3
)
TITLED_UNANSWERED = "Hybrid, titles alone, BM25 and title in the text"
LATE_UNANSWERED = "Hybrid, titles alone, BM25 and late chunking"
GNN_PSEUDO = "Hybrid, titles alone, BM25 and GNNEncoder, pseudo queries"
MAXSIM_UNANSWERED = "Hybrid, titles alone, @100 >> GraphMaxSim"
HGAT_PSEUDO = "Hybrid, titles alone, @100 >> HGAT, pseudo queries"
INDEX = "GraphIndex"
INDEX_DEFAULT = "GraphIndex, default numbers"  # not those that the answered queries support
INDEX_BM25 = "GraphIndex, BM25"

SYSTEMS: tuple[str, ...] = tuple(
    value for name, value in vars().items() if name.isupper()
)  # in this order
# what users would try first
RIVALS = (
    BM25,
    BM25_CONTEXT,
    DUAL,
    TITLE_IN_TEXT,
    LATE,
    HYBRID_PLAIN,
    HYBRID_UNTITLED,
    HYBRID_LATE,
    HYBRID_TITLED,
    TITLED_EVIDENCE,
    TITLED_HOME,
    TITLED_UNANSWERED,
    LATE_UNANSWERED,
)
FUSED_ALIKE = {
    HYBRID_CONTEXT: HYBRID_TITLED,
    HYBRID_EVIDENCE: TITLED_EVIDENCE,
    HYBRID_UNANSWERED: TITLED_UNANSWERED,
    INDEX_DEFAULT: HYBRID_TITLED,
    INDEX: TITLED_HOME,
}
# with the hybrid that they rerank
FUSED = {
    FUSED_MAXSIM: HYBRID_MAXSIM,
    FUSED_HGAT: HYBRID_HGAT,
    FUSED_CROSS_ENCODER: CROSS_ENCODER,
    FUSED_LGRE: LGRE,
}
# the counterparts of trained systems
UNTRAINED = {
    HGAT: MAXSIM,
    HYBRID_HGAT: HYBRID_MAXSIM,
    HYBRID_MATCHES: HYBRID_MAXSIM,
    FUSED_HGAT: FUSED_MAXSIM,
    HYBRID_GNN: HYBRID_CONTEXT,
    FUSED_CROSS_ENCODER: HYBRID_CONTEXT,
    FUSED_LGRE: FUSED_CROSS_ENCODER,
    GNN_PSEUDO: HYBRID_UNANSWERED,
    HGAT_PSEUDO: MAXSIM_UNANSWERED,
}
TRAINED = (
    GNN_ELSEWHERE,
    GNN_HOME,
    GNN_TUNED,
    CROSS_ENCODER,
    LGRE,
    *UNTRAINED,
)  # there is a run for each seed
CHOICES = {choice(name.partition(" (")[0]): name for name in SYSTEMS}
