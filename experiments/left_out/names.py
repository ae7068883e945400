"""Names of the systems."""

from __future__ import annotations

from experiments.harness.results import choice

BM25 = "BM25"
BM25_CONTEXT = "BM25, context in the text"
DUAL = "dual-encoder"
TITLE_IN_TEXT = "title in the text"
MEAN = "GraphMean"
MEAN_FIXED = "GraphMean, fixed default weights"  # a GNN-encoder starts here
MEAN_ELSEWHERE = "GraphMean, fixed weights from elsewhere"
MEAN_HOME = "GraphMean, fitted at home"
MEAN_BEST = "GraphMean, best fixed weights (chosen on the test queries)"
GNN_ELSEWHERE = "GNNEncoder, trained elsewhere"
GNN_HOME = "GNNEncoder, trained at home"
MAXSIM = "BM25@100 >> GraphMaxSim"
HGAT = "BM25@100 >> HGAT"
HYBRID_MAXSIM = "Hybrid, BM25 with context, @100 >> GraphMaxSim"
HYBRID_HGAT = "Hybrid, BM25 with context, @100 >> HGAT"
HYBRID_GNN = "Hybrid, BM25 with context and GNNEncoder"
HYBRID = "Hybrid"
HYBRID_CONTEXT = "Hybrid, BM25 with context"
HYBRID_HOME = "Hybrid, fitted at home"
HYBRID_PLAIN = "Hybrid, BM25 and dual-encoder"
HYBRID_TITLED = "Hybrid, BM25 with context and title in the text"  # what anyone can build
HYBRID_EVIDENCE = "Hybrid, BM25 with context, and DocumentEvidence"
TITLED_EVIDENCE = "Hybrid, BM25 with context and title in the text, and DocumentEvidence"
TITLED_HOME = "Hybrid, BM25 with context and title in the text, and DocumentEvidence, fitted at home"
HYBRID_UNANSWERED = "Hybrid, titles alone, BM25 and GraphMean"  # no queries have been answered
HYBRID_FIELD = "Hybrid, titles alone, three times, BM25 and GraphMean"  # titles as a field with weight 3
TITLED_UNANSWERED = "Hybrid, titles alone, BM25 and title in the text"
INDEX = "GraphIndex"
INDEX_DEFAULT = "GraphIndex, default numbers"  # not those that the answered queries support
INDEX_BM25 = "GraphIndex, BM25"

SYSTEMS = (
    BM25,
    BM25_CONTEXT,
    DUAL,
    TITLE_IN_TEXT,
    MEAN,
    MEAN_FIXED,
    MEAN_ELSEWHERE,
    MEAN_HOME,
    MEAN_BEST,
    GNN_ELSEWHERE,
    GNN_HOME,
    MAXSIM,
    HGAT,
    HYBRID_MAXSIM,
    HYBRID_HGAT,
    HYBRID_GNN,
    HYBRID,
    HYBRID_CONTEXT,
    HYBRID_HOME,
    HYBRID_PLAIN,
    HYBRID_TITLED,
    HYBRID_EVIDENCE,
    TITLED_EVIDENCE,
    TITLED_HOME,
    HYBRID_UNANSWERED,
    HYBRID_FIELD,
    TITLED_UNANSWERED,
    INDEX,
    INDEX_DEFAULT,
    INDEX_BM25,
)
# what users would try first
RIVALS = (
    BM25,
    BM25_CONTEXT,
    DUAL,
    TITLE_IN_TEXT,
    HYBRID_PLAIN,
    HYBRID_TITLED,
    TITLED_EVIDENCE,
    TITLED_HOME,
    TITLED_UNANSWERED,
)
FUSED_ALIKE = {
    HYBRID_CONTEXT: HYBRID_TITLED,
    HYBRID_EVIDENCE: TITLED_EVIDENCE,
    HYBRID_UNANSWERED: TITLED_UNANSWERED,
    INDEX_DEFAULT: HYBRID_TITLED,
    INDEX: TITLED_HOME,
}
TRAINED = (GNN_ELSEWHERE, GNN_HOME, HGAT, HYBRID_HGAT, HYBRID_GNN)  # there is a run for each seed
CHOICES = {choice(name.partition(" (")[0]): name for name in SYSTEMS}
