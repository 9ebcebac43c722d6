#!/usr/bin/env python3
"""Writes what NumPy and torch make of slices and numbers, for tests/test_number.c and tests/test_slice.c:

    tests/data/slices.txt         SPEC|SHAPE|VALUES of slices of numpy.arange(24).reshape(4, 3, 2)
    tests/data/number_codes.txt   DTYPE TEXT CODE: float32(TEXT) converted by torch, its bits; what overflows is left out
"""
import math
import os

import numpy as np
import torch

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")

SPECS = ["", "0", "0,", "1:3,", "-1", "3", "-4", "1:3", "-2:", ":-3", "::2", "1::2", "::-1", "3:0:-1", "-1:-6:-2", "10:20", "-100:100",
         "4:2", "2:2", "::100", "::-100", "0:100:3", "-100:2", "3:-10:-1", "1,2", "1,2,1", "-1,-1,-1", "...,0", "0,...",
         "...", "1,...,0", "...,1,1", ":,1", "0:4,1", ":,:,1", "::2,::-1,1:", "1:3,-1", "-2:,::2,-1", "2,:,::2",
         ":,3:0:-2,0", " 1 : 3 , 0 ", "4:1:-1,0,0", "0:0", ":,2:2", "::-1,::-1,::-1", "1:2,1:2,1:2", "-3:-1,1:3,:1", "+1"]

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E5M2": torch.float8_e5m2,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
          "F8_E8M0": torch.float8_e8m0fnu}
TEXTS = ["0", "-0", "1", "-1", "0.1", "3.14159", "1.00390625", "1.01171875", "65504", "65519", "448", "464", "-448", "1e-40",
         "9e-41", "1e-7", "6e-8", "2.9e-8", "3e-8", "240", "57344", "61439", "0.015625", "0.001953125", "0.0009765625", "0.0009",
         "nan", "inf", "-inf", "3.3895e38", "1e30", "6", "3", "1.5", "1.17549e-38", "2.5"]


def slices():
    a = np.arange(24).reshape(4, 3, 2)
    for spec in SPECS:
        part = a[eval("np.s_[" + spec.strip() + "]")] if spec else a
        yield "|".join([spec, ",".join(map(str, part.shape)), " ".join(map(str, np.asarray(part).ravel()))])


def codes():
    for name, dtype in DTYPES.items():
        for text in TEXTS:
            value = float(np.float32(text))
            converted = torch.tensor([value], dtype=torch.float32).to(dtype)
            back = converted.float()[0].item()
            size = converted.element_size()
            overflow = math.isfinite(value) and not math.isfinite(back) or math.isinf(value) and not math.isinf(back)
            saturated = abs(value) > 1 and name != "F8_E8M0" and abs(back - value) > 0.13 * abs(value)
            if overflow or saturated or name == "F8_E8M0" and not math.isnan(value) and value < 2.0 ** -127:
                continue
            code = converted.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[size])[0].item() % (1 << 8 * size)
            yield f"{name} {text} {code:x}"


for file, lines in (("slices.txt", slices()), ("number_codes.txt", codes())):
    with open(os.path.join(HERE, file), "w") as f:
        f.writelines(line + "\n" for line in lines)
