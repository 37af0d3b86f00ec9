"""Settings that a machine's speed depends on: governor, power mode, where its power comes from."""

from __future__ import annotations

from pathlib import Path

from specedge.power import files, jetson

GOVERNORS = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
PROFILE = "sys/firmware/acpi/platform_profile"
SUPPLIES = "sys/class/power_supply/*"


def governor(root: Path) -> str | None:
    """The frequency governors of all cores, each named once."""
    found = {name for path in files.matching(root, GOVERNORS) if (name := files.line(path))}
    return ", ".join(sorted(found)) or None


def power_mode(root: Path) -> str | None:
    """A Jetson's power mode, or the platform's profile ("balanced")."""
    return jetson.power_mode(root) or files.line(root / PROFILE)


def power_source(root: Path) -> str | None:
    """ "mains" or "battery"; None where no supply says that it is one of the two.

    A laptop that charges over USB shows no supply of type Mains: then any USB supply counts.
    Batteries of mice and headsets have the scope "Device" and count for nothing.
    """
    mains: list[bool] = []
    usb: list[bool] = []
    battery = False
    for folder in files.matching(root, SUPPLIES):
        kind, online = files.line(folder / "type"), files.count(folder / "online")
        if files.line(folder / "scope") == "Device":
            continue
        if kind == "Mains" and online is not None:
            mains.append(online > 0)
        elif kind is not None and kind.startswith("USB") and online is not None:
            usb.append(online > 0)
        elif kind == "Battery":
            battery = True
    if any(mains) or any(usb):
        return "mains"
    if mains or battery:
        return "battery" if battery else None
    return None


def all_of(root: Path) -> dict[str, str | None]:
    """By the name a person knows them under."""
    return {
        "power mode": power_mode(root),
        "governor": governor(root),
        "power": power_source(root),
    }
