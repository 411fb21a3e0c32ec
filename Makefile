# Corelane: every task of a developer is one target. `make` alone lists them.
#
#   make run                 set up, build, start a host, show the main job end to end, stay up (ONCE=1: stop; FILE=: the events)
#   make test                static checks, then the short ladder; ends with "N passed, M failed"
#   make test-full           the same at full length
#   make verify              static checks only; writes nothing
#   make fix                 formats, and applies what clippy can mend
#   make figures SET=node    release build, measures, prints figure, limit, ratio; fails on a missed "must"
#   make setup               installs what builds and tests need (apt-get), or names what is missing
#   make clean               removes what was built
#
# One build profile, `ci`, serves the tests and the binary that they start; `make figures` alone builds `release`.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup run test test-full verify fix figures clean

SET ?= node

help:
	@sed -n '3,10s/^#  \{0,1\}//p' Makefile

setup:
	@deploy/scripts/setup.sh build test

run:
	@FILE='$(FILE)' ONCE='$(ONCE)' PROFILE='$(PROFILE)' SIZE_MIB='$(SIZE_MIB)' deploy/scripts/run.sh

test:
	@deploy/scripts/test.sh short

test-full:
	@deploy/scripts/test.sh full

verify:
	@deploy/scripts/verify.sh

fix:
	@deploy/scripts/fix.sh

figures:
	@deploy/scripts/figures.sh '$(SET)'

clean:
	cargo clean
