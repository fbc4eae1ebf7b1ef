// A model whose units are custom torch::nn modules.
#pragma once

#include "model/module_model.h"
