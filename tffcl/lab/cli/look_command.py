"""`tffcl similarity` and `tffcl show`, which train nothing: their options, and what they print."""

from tffcl.lab.cli import command_options as shared


def add_similarity(parser):
    """Adds the options of `tffcl similarity`."""
    shared.add_task_options(parser)
    told = "what clients tell about their data (default: subspace)"
    parser.add_argument("--signature", default="subspace", metavar="S", help=told)
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    points = "also umap.png, the clients as points, those that are alike near each other"
    parser.add_argument("--map", action="store_true", help=points)
    parser.add_argument("--out", metavar="OUT", help="directory of matrix and pictures (default: below runs/)")


def add_show(parser):
    """Adds the options of `tffcl show`."""
    shared.add_task_options(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides who gets which examples (default: 0)")
    parser.add_argument("--out", metavar="OUT", help="directory of the pictures (default: below runs/)")


def similarity(options):
    """Says how alike the clients of a task are."""
    from tffcl.lab.batches import similarity
    from tffcl.lab.tasks import resolve, task_file
    from tffcl.registry import COMPOSED, SIGNATURES

    name, overrides = options.signature, shared.overrides(options)
    method = SIGNATURES[name].method if name in SIGNATURES else ""
    if not method:  # one that no method is named after, or a builder of the user's own
        method = COMPOSED
        overrides = task_file.merged({"algorithms": {method: {"signature": name}}}, overrides)
    resolved = resolve.resolve(options.task, method, seed=options.seed, overrides=overrides)
    out = options.out or f"runs/{shared.task_name(options.task)}/similarity/{name.replace(':', '.')}"
    print(similarity.write_similarity(resolved, out, data_dir=options.data_dir, map_clients=options.map))


def show(options):
    """Says who holds what."""
    from tffcl.lab.batches import show
    from tffcl.lab.tasks import resolve
    from tffcl.registry import PLAIN

    resolved = resolve.resolve(options.task, PLAIN, seed=options.seed, overrides=shared.overrides(options))
    out = options.out or f"runs/{shared.task_name(options.task)}/show"
    print(show.show(resolved, out, data_dir=options.data_dir))
