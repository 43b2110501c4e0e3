"""The extension, which pyproject.toml cannot name without a warning; native/build.py says what it is made of."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("kit._native", sources=["native/guard.c"])])
