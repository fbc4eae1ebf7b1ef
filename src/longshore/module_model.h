// ModuleModel: torch::nn modules of one's own as the units of a model.
#pragma once

#include "model/module_model.h"
