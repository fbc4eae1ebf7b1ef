// Loading: fills a rank's shards with parameter values before the first step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shard/state_walk.h"
#include "shard/unit_spec.h"

namespace longshore {

// Fills `out` with elements [begin, begin + out.size()) of a parameter.
using ParameterReader =
    std::function<void(const std::string& name, int64_t begin, std::span<float> out)>;

// Sets every parameter of the rank's shards from `read`, in chunks, and its moments to zero.
void load_parameters(const StateWalk& walk, const ModelSpec& model,
                     const std::vector<FlatLayout>& layouts, Rank rank,
                     const ParameterReader& read);

}  // namespace longshore
