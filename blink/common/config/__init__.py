"""The scenario: one TOML file: what runs, on what, under which load. Only here does the contract use pydantic."""

from blink.common.config.fleet import Fleet
from blink.common.config.hardware import Dpu, Gpu, Links, Model
from blink.common.config.host import Host, InterferenceMix, MitigationSet, Power, Prices
from blink.common.config.load import load_scenario, parse_scenario
from blink.common.config.options import Serving
from blink.common.config.scenario import Scenario, json_schema, relocated
from blink.common.config.serving import Frontend, Limits, Run, Slo, Trace
from blink.common.config.system import System
from blink.common.config.toml import to_toml
from blink.common.config.workload import Workload

__all__ = [
    "Dpu",
    "Fleet",
    "Frontend",
    "Gpu",
    "Host",
    "InterferenceMix",
    "Limits",
    "Links",
    "MitigationSet",
    "Model",
    "Power",
    "Prices",
    "Run",
    "Scenario",
    "Serving",
    "Slo",
    "System",
    "Trace",
    "Workload",
    "json_schema",
    "load_scenario",
    "parse_scenario",
    "relocated",
    "to_toml",
]
