// The choice between gathering units with NCCL and on the host, on the stand-in's GPUs.
#include <gtest/gtest.h>

#include "comm/world/world.h"
#include "tests/comm/rank_threads.h"
#include "tests/stand_in_gpu/stand_in.h"
#include "trainer/setup/run_setup.h"

namespace longshore {
namespace {

// Goal: ranks measure the gathers of a GPU run over memory that NCCL takes, and choose alike. An
// earlier version passed host memory to NCCL.
TEST(GatherChoice, GpusMeasureTheirOwnMemoryAndAgree) {
  stand_in::set_gpus(std::vector<CudaDevice>(2, {.name = "Stand-in", .memory_bytes = 16 * kGiB}));
  stand_in::order_collectives({});
  WorldOptions options = quick_options();
  options.device = DeviceKind::kCuda;
  std::vector<GatherMode> chosen(2);
  const auto body = [&](World& world) {
    const int32_t rank = world.ranks().rank;
    const auto shards = world.group("shards", {0, 1});
    const RankGroups groups{.topology = make_topology(ShardStrategy::kFullShard, 2, 2),
                            .rank = Rank(rank),
                            .gpu = rank,
                            .all = &world.all(),
                            .shards = shards.get(),
                            .gathers = shards.get()};
    PlanInputs inputs;
    inputs.device = DeviceKind::kCuda;
    inputs.topology = groups.topology;
    inputs.ranks_per_node = 2;
    inputs.state = {.format = StateFormat::kSplitBf16, .compute = DType::kBF16};
    choose_gather(RunConfig{}, &groups, inputs);
    chosen[static_cast<size_t>(rank)] = inputs.gather;
  };
  run_ranks(2, body, options);
  EXPECT_EQ(chosen[0], chosen[1]);
  EXPECT_GT(stand_in::collectives_ended(), 0);
  stand_in::set_gpus({{.name = "Stand-in", .memory_bytes = 16 * kGiB, .compute_major = 9}});
}

}  // namespace
}  // namespace longshore
