// The exceptions of the library; each has the exit code for a program that ends with it.
#pragma once

#include "base/errors.h"
