"""Builds the section and the cards of an embedding: lengths of vectors, and for some rows the most similar ones.

Knows the figures of vector_figures.py.
"""

from collections.abc import Iterator, Mapping

from ..report_data.vector_figures import Neighbours, VectorFigures
from ..terminal.tables import count_text
from .charts import Chart, histogram_chart
from .page import Card, PageSection, table


def embeddings(found: VectorFigures | None, near: list[Neighbours], texts: Mapping[int, str]) -> PageSection | None:
    """Shows the lengths of vectors and the nearest neighbours of some rows; None for another job. texts: by their rows."""
    if found is None:
        return None
    charts: list[Chart] = []
    if found.norms.count:
        low, median, high = (found.norms.quantile(share) or 0.0 for share in (0.05, 0.5, 0.95))
        words = f"Mean {found.norms.mean or 0:.4g}; nine in ten lie between {low:.3g} and {high:.3g}, the median is {median:.3g}."
        if set(found.norms.distinct or ()) == {1.0}:
            words = "All vectors are normalized: their length is 1."
        charts.append(Chart("norms", "Length of a vector", words, histogram_chart(found.norms.histogram(), "Euclidean length", "vectors")))
    tables = []
    if near:
        cells = [
            ["" if place else "▸", f"{row:,}", f"{cosine:.3f}" if place else "", texts.get(row, "")]
            for each in near
            for place, (row, cosine) in enumerate([(each.row, 1.0), *each.nearest])
        ]
        words = (
            f"Below each row with ▸ are those with the most similar vectors among the first {found.compared:,} rows, with their cosines."
        )
        tables.append(table("Nearest neighbours", ["", "row", "cosine", "text"], cells, left=4, words=words, prose=(3,)))
    return PageSection("embeddings", "Embeddings", "", charts, tables) if charts or tables else None


def vector_cards(found: VectorFigures | None, records: int) -> Iterator[Card]:
    """Yields the cards for the vectors and for texts that were cut."""
    if found is None:
        return
    yield Card("Dimensions", f"{found.dimensions:,}", f"numbers of a vector, stored as {found.dtype}")
    cut = f"{count_text(found.truncated, 'row')} with a text that was cut"
    yield Card("Truncated", f"{100 * found.truncated / records:.1f} %", cut)
