"""What the commands of ``aureole index`` print about a gallery."""

from __future__ import annotations

from typing import Any

import aureole as au
from aureole.cli._output import print_json, print_text
from aureole.engines._addresses import shown_address

RECALL_QUERIES = 20  # rows of the gallery that measure the recall of an approximate index
_GOOD_RECALL = 0.99  # below it the output suggests what to change


def gallery_facts(index: au.CredibleIndex, where: str) -> dict[str, Any]:
    """Facts about an index to print; the address has no password."""
    schema, held, origin = index.schema, index.conformal, index.origin
    calibrated = None
    if held is not None:
        pairs = len(held.scores)
        calibrated = {"pairs": pairs, "largest_mass": pairs / (pairs + 1)}
        calibrated |= {"kappa_pos": held.kappa_pos, "kappa_other": held.kappa_other}
    return {
        "gallery": shown_address(where),
        "engine": index.engine,
        "rows": index.count(),
        "dim": schema.dim,
        "typical_kappa": schema.typical_kappa,
        "columns": dict(schema.columns),
        "approximate": index.approximate,
        "conformal": calibrated,
        "kappa_pos": origin.kappa_pos,
        "head": origin.weights,
        "encoder": origin.encoder,
    }


def recall_facts(recall: au.caps.Recall) -> dict[str, Any]:
    """The recall, of all caps and by their size."""
    by_size = {str(size): part.share for size, part in recall.by_size.items()}
    return {"recall": recall.share, "recall_by_size": by_size}


def show_facts(result: dict[str, Any], *, as_json: bool) -> None:
    """Print facts about a gallery, as text or as JSON."""
    if as_json:
        print_json(result)
        return
    added = f"{result['appended']:,} rows appended; " if "appended" in result else ""
    if result.get("replaced"):
        added += f"{result['replaced']:,} replaced; "
    kappa_pos = "" if result["kappa_pos"] is None else f"; κ_pos {result['kappa_pos']:.4g}"
    columns = ", ".join(f"{name} ({kind})" for name, kind in result["columns"].items())
    print_text(
        f"{added}{result['rows']:,} rows in R^{result['dim']} in {result['gallery']} ({result['engine']})",
        f"typical κ {result['typical_kappa']:.4g}{kappa_pos}",
        f"payload: {columns or 'none'}",
    )
    approximate = result["approximate"]
    if approximate is None:
        print_text("every search is exact")
    else:
        shown = {name: value for name, value in approximate.items() if name != "kind"}
        sizes = ", ".join(f"{name} {value}" for name, value in shown.items())
        print_text(f"approximate index {approximate['kind']}{f' ({sizes})' if sizes else ''}")
        if "recall" in result:
            share = f"{100 * result['recall']:.2f} %"
            print_text(f"recall {share} of the members of the caps of {RECALL_QUERIES} rows")
            for size, part in result["recall_by_size"].items():
                sizes = "1,000 or more" if size == "1000" else f"{size} to {10 * int(size) - 1}"
                print_text(f"  caps with {sizes} members: {100 * part:.2f} %")
        if result.get("recall", 1.0) < _GOOD_RECALL:
            advice = "rebuild with more --probes or --width, or search with --exact."
            print_text(f"The recall is low: {advice}")
    text, held = "no conformal calibration", result["conformal"]
    if held is not None:
        text = f"conformal calibration on {held['pairs']:,} pairs: guarantees up to mass {held['largest_mass']:.4g}"
    print_text(text)
