"""`testbed predict`: the iteration time of every schedule by the model alone."""

from __future__ import annotations

from rich.console import Console

from testbed.cli.options import AsJson, Quiet, Schedules, Settings, TopologyFile, WorkloadFile, emit


def predict(
    topology: TopologyFile,
    workload: WorkloadFile,
    schedule: Schedules = None,
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict the iteration time of every schedule. Needs no root, starts no containers."""
    from testbed.cli import tables
    from testbed.cli.progress import Terminal
    from testbed.pipeline.memory import peak_in_flight
    from testbed.plan import costs, resolve

    plan = resolve.load_plan(topology, workload, settings=settings or [])
    rows, proofs, families = [], [], []
    with Terminal(quiet=quiet).solving() as watch:
        for choice in resolve.choose(plan, schedule or [], watch):
            generated, proof = resolve.generate(plan, choice, watch=watch)
            timeline = costs.predict(plan, choice, generated)
            makespan, bubble = float(timeline.makespans()[0]), float(timeline.bubble_ratios()[0])
            rows.append((choice.label, makespan, bubble, max(peak_in_flight(generated))))
            proofs.append(proof)
            families.append(choice.schedule)
    baseline = next((row[1] for row, name in zip(rows, families, strict=True) if name == "1f1b"), None)
    full = [(*row, baseline / row[1] if baseline else None) for row in rows]
    if as_json:
        keys = ("label", "predicted_s", "bubble_predicted", "peak_in_flight_predicted", "speedup_predicted")
        names = {"topology": plan.network.name, "workload": plan.jobs[0].name}
        documents = [
            {"schedule": name} | dict(zip(keys, row, strict=True)) | {"solver": proof and proof._asdict()}
            for name, row, proof in zip(families, full, proofs, strict=True)
        ]
        emit({**names, "schedules": documents})
        return
    console = Console()
    console.print(tables.plan_table(plan))
    console.print(tables.prediction_table(plan, full))
    for row, proof in zip(full, proofs, strict=True):
        if proof is not None:
            console.print(tables.proof_line(row[0], proof), highlight=False)
