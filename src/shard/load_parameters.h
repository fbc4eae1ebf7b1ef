// Fills a rank's shards with parameter values before the first step. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shard/shard_store.h"
#include "shard/unit_spec.h"

namespace longshore {

// Fills `out` with elements [begin, begin + out.size()) of a parameter. Several threads call it at
// once, for different elements.
using ParameterReader =
    std::function<void(const std::string& name, int64_t begin, std::span<float> out)>;
// Fills `out` with bytes of a packed parameter, from `begin` on, in the same way.
using PackedReader =
    std::function<void(const std::string& name, Bytes begin, std::span<std::byte> out)>;

// Calls work(i) once for every i in [0, blocks), in no fixed order, and returns when all are done.
// It rethrows the first exception of a block. WorkerPool::for_each_block has this form.
using ForEachBlock =
    std::function<void(int64_t blocks, const std::function<void(int64_t block)>& work)>;
// Runs the blocks on the calling thread, in order.
void for_each_block_in_order(int64_t blocks, const std::function<void(int64_t block)>& work);

// Sets every parameter of the rank's shards from `read`, and its moments to zero; frozen parameters
// only if the tier holds them, and then they are numbers. The chunks of a unit are the blocks of
// one call of `each_block`; each thread holds at most one chunk (1 MiB). The state has the same
// bits for any number of threads.
void load_parameters(const StateSweep& sweep, const ModelSpec& model,
                     const std::vector<FlatLayout>& layouts, Rank rank, const ParameterReader& read,
                     const ForEachBlock& each_block = for_each_block_in_order);

// Calls `read` for every parameter of a shard, in the same chunks as load_parameters, or
// `read_packed` if it is packed, and keeps no value: for a comparison with what another rank loads.
void read_parameters(const ModelSpec& model, const std::vector<FlatLayout>& layouts, Rank rank,
                     const ParameterReader& read, const PackedReader& read_packed,
                     const ForEachBlock& each_block = for_each_block_in_order);

}  // namespace longshore
