// Collectives on GPUs over the stand-in for NCCL, which refuses host memory and runs one collective
// at a time on each GPU. An order that would hang on GPUs is found.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "base/errors.h"
#include "comm/collectives/nccl_communicator.h"
#include "offload/optimizer/adamw.h"
#include "offload/schedule/step_schedule.h"
#include "tests/comm/rank_threads.h"
#include "tests/engine/overlapped_steps.h"
#include "tests/stand_in_gpu/stand_in.h"

namespace longshore {
namespace {

class OrderedCollectives : public testing::Test {
 protected:
  OrderedCollectives() {
    stand_in::set_gpus(std::vector<CudaDevice>(2, {.name = "Stand-in", .memory_bytes = 16 * kGiB}));
    stand_in::order_collectives({});
  }
  ~OrderedCollectives() override {
    stand_in::order_collectives({});
    stand_in::set_gpus({{.name = "Stand-in", .memory_bytes = 16 * kGiB, .compute_major = 9}});
  }

  static WorldOptions gpu_options() {
    WorldOptions options = quick_options();
    options.device = DeviceKind::kCuda;
    return options;
  }
};

std::string text_of_error(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
  return "";
}

// TwoGroups: every rank's gather and sum, on a communicator each, over memory of its GPU.
struct TwoGroups {
  explicit TwoGroups(World& world)
      : one(world.group("one", {0, 1})),
        two(world.group("two", {0, 1})),
        arena(make_nccl_arena(64, world.ranks().local_rank)),
        rank(static_cast<size_t>(world.ranks().rank)) {
    bytes()[rank] = static_cast<std::byte>(rank + 1);
    for (float& value : floats()) value = static_cast<float>(rank + 1);
  }
  std::span<std::byte> bytes() const { return arena->bytes().first(2); }
  std::span<float> floats() const {
    return {reinterpret_cast<float*>(arena->bytes().subspan(32).data()), 4};
  }
  Completion gather() const { return one->all_gather({bytes()}, {"parameters", UnitId(3)}); }
  Completion sum() const {
    return two->reduce_scatter({floats()}, DType::kF32, {}, {"gradients", UnitId(4)});
  }

  std::unique_ptr<Communicator> one, two;
  std::unique_ptr<DeviceArena> arena;
  size_t rank;
};

// Goal: with one order on both ranks the collectives end, with the right bytes and sums.
TEST_F(OrderedCollectives, OneOrderOfTwoCommunicatorsEnds) {
  const auto body = [](World& world) {
    const TwoGroups groups(world);
    Completion gather = groups.gather();
    Completion sum = groups.sum();
    sum.wait();
    gather.wait();
    EXPECT_EQ(groups.bytes()[0], std::byte{1});
    EXPECT_EQ(groups.bytes()[1], std::byte{2});
    EXPECT_EQ(groups.floats()[groups.rank * 2], 3.0f);
    world.all().barrier({"looked", {}}).wait();
  };
  run_ranks(2, body, gpu_options());
  EXPECT_EQ(stand_in::collectives_ended(), 2);
}

// Goal: different orders never end, and the error says which rank waits for which.
TEST_F(OrderedCollectives, DifferentOrdersOfTwoCommunicatorsHang) {
  const auto body = [](World& world) {
    const TwoGroups groups(world);
    std::vector<Completion> completions;
    if (groups.rank == 0) completions.push_back(groups.gather());
    completions.push_back(groups.sum());
    if (groups.rank == 1) completions.push_back(groups.gather());
    for (Completion& completion : completions) completion.wait();
  };
  for (const auto& error : run_ranks_catching(2, body, gpu_options())) {
    const std::string text = text_of_error(error);
    EXPECT_NE(text.find("wait for each other for ever"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 0 runs all_gather #1 of parameters, unit 3 (2 bytes) in group one "
                        "and waits for rank 1"),
              std::string::npos)
        << text;
  }
}

// Goal: host memory never reaches NCCL; the error says which memory it was and what is allowed.
TEST_F(OrderedCollectives, MemoryOfTheHostIsRefused) {
  const auto body = [](World& world) {
    const TwoGroups groups(world);
    std::vector<std::byte> host(2);
    std::vector<float> values(4);
    double scalar = 1;
    const OpLabel label{"a table", {}};
    const auto refused = [](const auto& collective) {
      try {
        collective();
        ADD_FAILURE() << "taken";
      } catch (const CheckFailure& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("of a table ("), std::string::npos) << text;
        EXPECT_NE(text.find("not in a GPU's arena"), std::string::npos) << text;
        EXPECT_NE(text.find("World::host_group()"), std::string::npos) << text;
      }
    };
    refused([&] { groups.one->all_gather({std::span(host)}, label).wait(); });
    refused([&] { groups.one->reduce_scatter({values}, DType::kF32, {}, label).wait(); });
    refused([&] { groups.one->all_reduce({std::span(values)}, DType::kF32, {}, label).wait(); });
    refused([&] { groups.one->all_reduce(std::span(&scalar, 1), label).wait(); });
    refused([&] { groups.one->broadcast(host, 0, label).wait(); });
    // Memory that lies partly outside an arena, or in a freed one, is refused.
    const std::span<std::byte> arena = groups.arena->bytes();
    refused([&] { groups.one->all_gather({std::span(arena.data() + 60, 8)}, label).wait(); });
    auto gone = make_nccl_arena(64, 0);
    const std::span<std::byte> former = gone->bytes();
    gone.reset();
    refused([&] { groups.one->all_gather({former}, label).wait(); });
  };
  run_ranks(2, body, gpu_options());
  EXPECT_EQ(stand_in::collectives_ended(), 0);
}

// Goal: whole steps with everything overlapped end whatever the pauses and give the same bits, with
// units gathered by NCCL and on the host.
TEST_F(OrderedCollectives, StepsOnTwoGpusGiveTheSameBits) {
  for (const bool clips : {true, false}) {
    std::vector<Variant> variants = cover(clips);
    for (Variant& variant : variants) variant.device = DeviceKind::kCuda;
    const auto digests = train_ranks(2, variants, 3);
    for (size_t i = 1; i < variants.size(); ++i) {
      EXPECT_EQ(digests[i], digests[0]) << variants[i].text();
    }
  }
  EXPECT_GT(stand_in::collectives_ended(), 100);
}

// OneMapping: one segment of bytes as a tier that ranks share.
class OneMapping final : public SharedShards {
 public:
  const HostMapping& mapping() const override { return mapping_; }
  std::span<const std::byte> mapped_parameters(std::span<const std::byte> mapping,
                                               UnitId) const override {
    return mapping.first(8);
  }

 private:
  HostMapping mapping_ = HostMapping::shared(4096, "test");
};

// Goal: a GPU copies from another rank's registered arena as from its own, whether or not the GPU
// registers read-only memory.
TEST_F(OrderedCollectives, OtherRanksArenasAreRegistered) {
  for (const bool read_only : {true, false}) {
    stand_in::register_read_only(read_only);
    run_ranks(
        2,
        [](World& world) {
          const auto group = world.host_group("shards on the host", {0, 1});
          const OneMapping own;
          own.mapping().bytes()[0] = static_cast<std::byte>(world.ranks().rank + 1);
          const NodeShards node(&own, 1, group.get(), {}, /*register_with_gpus=*/true);
          const int32_t other = 1 - world.ranks().rank;
          EXPECT_EQ(node.shard(other, UnitId(0))[0], static_cast<std::byte>(other + 1));
          EXPECT_TRUE(stand_in::registered(node.shard(other, UnitId(0))));
          world.all().barrier({"looked", {}}).wait();
        },
        gpu_options());
  }
  stand_in::register_read_only(true);
}

// Pair: the first sum of a schedule, and the first gather that may come before or after it.
struct Pair {
  const Op* sum = nullptr;
  const Op* gather = nullptr;
  int64_t nth = 0;  // number of the unit's gather, from 1
};
Pair unordered_pair(const StepSchedule& schedule) {
  const HappensBefore before(schedule);
  const auto first = std::ranges::find(schedule.ops, OpKind::kReduce, &Op::kind);
  const auto sum = static_cast<int32_t>(first - schedule.ops.begin());
  for (int32_t i = 0; i < std::ssize(schedule.ops); ++i) {
    const Op& op = schedule.ops[static_cast<size_t>(i)];
    if (op.kind != OpKind::kGather || before.ordered(i, sum) || before.ordered(sum, i)) continue;
    const auto nth = std::count_if(
        schedule.ops.begin(), schedule.ops.begin() + i + 1,
        [&op](const Op& other) { return other.kind == OpKind::kGather && other.unit == op.unit; });
    return {&*first, &op, nth};
  }
  return {};
}

// Goal: without the schedule's order steps can hang: a gather and a sum without order run in one
// order on one rank and in the other on the other.
TEST_F(OrderedCollectives, StepsWithoutAnOrderHang) {
  const auto model = make_deep_model();
  const Variant variant{.prefetch = 2, .device = DeviceKind::kCuda};
  TierPlan plan = plan_of(*model, variant, 2);
  EXPECT_EQ(unordered_pair(plan.step.schedules.train).gather, nullptr);
  std::vector<Op>& ops = plan.step.schedules.train.ops;
  std::map<UnitId, int32_t> gathered;  // by unit: its last gather
  for (int32_t i = 0; i < std::ssize(ops); ++i) {
    Op& op = ops[static_cast<size_t>(i)];
    if (op.kind == OpKind::kGather) gathered[op.unit] = i;
    if (is_collective(op.kind)) {
      std::erase_if(op.after, [&ops](int32_t other) {
        return is_collective(ops[static_cast<size_t>(other)].kind);
      });
    } else if (lane_of(op.kind) == Lane::kCompute) {
      // The order of collectives can imply the wait for a gather, so the schedule leaves it out.
      for (const Placed& placed : op.placed()) op.after.push_back(gathered.at(placed.unit));
    }
  }
  const Pair pair = unordered_pair(plan.step.schedules.train);
  ASSERT_NE(pair.gather, nullptr);
  const auto sum = [&](int32_t rank) {
    return stand_in::Given{rank, "gradients", pair.sum->unit, 1};
  };
  const auto gather = [&](int32_t rank) {
    return stand_in::Given{rank, "parameters", pair.gather->unit, pair.nth};
  };
  stand_in::order_collectives({{sum(0), gather(0)}, {gather(1), sum(1)}});
  std::vector<std::unique_ptr<ModuleModel>> models;
  for (int rank = 0; rank < 2; ++rank) models.push_back(make_deep_model());
  const auto body = [&](World& world) {
    const RankCommunicators communicators(world, DeviceKind::kCuda, /*two=*/true);
    const ModuleModel& own = *models[static_cast<size_t>(world.ranks().rank)];
    Engine engine(&own, plan, std::make_unique<AdamWRule>(AdamWOptions{}), communicators.groups);
    train(engine, own, variant, 1);
  };
  for (const auto& error : run_ranks_catching(2, body, gpu_options())) {
    const std::string text = text_of_error(error);
    EXPECT_NE(text.find("wait for each other for ever"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace longshore
