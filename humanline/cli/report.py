"""`humanline report`: a page about runs that needs no network and no script."""

from __future__ import annotations

import argparse

from humanline.cli.common import Commands, quiet_libraries
from humanline.system.terminal import visible


def report_commands(commands: Commands) -> None:
    """Add what makes a page of run folders."""
    parser = commands.add_parser("report", help="make a page of runs: curves, numbers with intervals, answers")
    what = "a run's folder, answers of humanline evaluate or sample, tables of humanline reproduce, or a folder of such"
    parser.add_argument("paths", nargs="+", metavar="RUN", help=what)
    parser.add_argument("--out", default="report.html", help="the page (default: report.html); its numbers lie beside")
    parser.add_argument("--prompts", type=int, default=4, help="of which answers are shown side by side (default: 4)")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    quiet_libraries()
    from humanline.report.write import write_report

    for path in write_report(options.paths, options.out, prompts=options.prompts):
        print(visible(str(path)))
    return 0
