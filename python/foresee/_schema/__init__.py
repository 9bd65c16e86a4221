# SPDX-License-Identifier: Apache-2.0
"""Readers of what users write: values with units, tables of them, TOML files, paths and addresses.

All packages read user files through these modules, so that a rate has one spelling and one error everywhere.
"""
