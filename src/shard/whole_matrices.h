// Whole matrices: places parameters so that no rank's shard cuts one of their matrices. Pure
// arithmetic in elements; any thread. FlatLayout calls it for an update rule that needs a matrix on
// one rank.
//
// Shards have equal sizes, because collectives need that, and a parameter stays contiguous, because
// the device reads it so. A parameter of several matrices (a stack of experts, fused projections)
// may therefore lie in several shards, if their edges fall between its matrices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shard/unit_spec.h"

namespace longshore {

struct UncutParameter {
  int64_t elements = 0;
  std::vector<int64_t> cuts;  // elements before which an edge may fall, ascending
};

// Returns the cuts between the parameter's matrices that are multiples of `alignment`.
UncutParameter uncut_parameter(const ParamSpec& parameter, int64_t alignment);

struct MatrixShards {
  std::vector<int64_t> begins;  // of each parameter
  int64_t shard_elements = 0;   // of each rank, a multiple of the alignment
};

// Gives each parameter the first place that its matrices allow, in order, in the smallest shards
// for which that ends within `ranks` of them.
MatrixShards share_matrices(std::span<const UncutParameter> parameters, int32_t ranks,
                            int64_t alignment);

}  // namespace longshore
