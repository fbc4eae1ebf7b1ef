// The planned bytes of a GPU's temporaries against those that LibTorch's kernels and allocator
// take. With the stand-in for GPUs these are its own model of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "base/errors.h"
#include "base/json.h"
#include "device/cuda_device.h"
#include "device/gpu_tensors.h"
#include "model/attention/gpu_attention.h"
#include "model/families/families.h"
#include "model/models/decoder_model.h"
#include "model/parameters/model_spec.h"
#include "offload/engine/engine_device.h"
#include "offload/engine/probe/measured_workspace.h"
#include "tests/fakes/cpu_branches.h"
#include "tests/fakes/gpu.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

const char* const kLlama8B =
    R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": false})";

std::unique_ptr<DecoderModel> model_of(const Json& config) {
  const ArchSpec arch = read_arch_spec(config, "config.json");
  return std::make_unique<DecoderModel>(arch, make_model_spec(arch, {}));
}

Json small_llama(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {{"model_type", "llama"},           {"vocab_size", 512},
          {"hidden_size", heads * head_dim}, {"intermediate_size", 2 * heads * head_dim},
          {"num_hidden_layers", 2},          {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads}, {"head_dim", head_dim}};
}

const ProbeDevice kGpu = {.kind = DeviceKind::kCuda, .gpu = 0, .compute = DType::kBF16};

// Goal: an 8B model with micro-batches of 4,096 positions is planned on GPUs of 24 and 16 GiB, for
// any split of its rows into documents.
TEST(WorkspaceGpu, PlansFor8BFitConsumerCards) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const fakes::ShapesOnly fast;
  const auto model = model_of(Json::parse(kLlama8B));
  const UnitCosts costs =
      MeasuredWorkspace(*model, {.device = kGpu, .run = {4096, 4096}, .cache = {}, .program = {}})
          .costs();
  for (const int64_t cap : {24, 16}) {
    PlanInputs inputs;
    inputs.model = &model->spec();
    inputs.costs = costs;
    inputs.state = {
        .format = StateFormat::kSplitBf16, .compute = DType::kBF16, .drain = DType::kBF16};
    inputs.sequences_per_step = 8;
    inputs.max_tokens = 4096;
    inputs.device = DeviceKind::kCuda;
    inputs.device_cap = cap * kGiB;
    Machine machine = made_up_machine(128 * kGiB);
    machine.gpus = {{.name = "Test GPU", .memory_bytes = cap * kGiB}};
    const TierPlan plan = draft_tier_plan(inputs, machine);
    EXPECT_TRUE(plan.fits()) << cap << " GiB: " << explain_misfit(inputs, machine);
    EXPECT_EQ(plan.device.workspace_source, CostSource::kMeasured);
    std::cout << cap << " GiB: buffers " << format_bytes(plan.device.owned) << ", workspace "
              << format_bytes(plan.device.workspace) << " with the allowance\n";
  }
}

// Returns short documents for one call and a long one that has a call of its own.
std::vector<int64_t> short_ones_before_a_long_one(int64_t positions) {
  const int64_t count = flash_backward_documents(positions);
  std::vector<int64_t> documents(static_cast<size_t>(count), 1);
  documents.push_back(positions - count);
  return documents;
}

// Returns documents of random lengths, of one length, or short ones before a long one.
std::vector<int64_t> draw_documents(std::mt19937_64& generator, int64_t positions) {
  const auto between = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(generator() % static_cast<uint64_t>(most - least + 1));
  };
  const int64_t around = int64_t{1} << between(0, 9);
  const bool equal = between(0, 1) == 0;
  std::vector<int64_t> documents;
  for (int64_t left = between(positions / 2, positions); left > 0;) {
    int64_t length = std::min(left, equal ? around : between(1, around));
    if (std::ssize(documents) >= flash_backward_documents(positions)) length = left;
    documents.push_back(length);
    left -= length;
  }
  return documents;
}

// Goal: no split of a micro-batch into documents takes more than planned, and the plan is at most
// half above the worst of them.
TEST(WorkspaceGpu, PlansWhatAnyDocumentsTake) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const fakes::ShapesOnly fast;
  std::mt19937_64 generator(5);
  for (const auto& [heads, kv_heads] : {std::pair(4, 4), std::pair(16, 4), std::pair(48, 8)}) {
    const auto model = model_of(small_llama(heads, kv_heads, 64));
    const MicroBatchShape run = {1024, 1024};
    const UnitCost cost =
        MeasuredWorkspace(*model, {.device = kGpu, .run = run, .cache = {}, .program = {}})
            .costs()(run.positions, run.longest_document)
            .at(1);
    const OneUnitModel block(*model, UnitId(1));
    UnitProbe probe(&block, kGpu, run.positions);
    Bytes most = 0;
    for (int i = 0; i < 20; ++i) {
      const std::vector<int64_t> documents = i == 0 ? short_ones_before_a_long_one(run.positions)
                                                    : draw_documents(generator, run.positions);
      const ProbeTrace trace = probe.run(documents, run.positions);
      const Bytes taken = std::ranges::max(trace.backward);
      EXPECT_LE(trace.forward, cost.forward) << documents.size() << " documents";
      EXPECT_LE(taken, cost.backward) << heads << " heads, " << documents.size() << " documents";
      most = std::max(most, taken);
    }
    EXPECT_LE(static_cast<double>(cost.backward), 1.5 * static_cast<double>(most) + kMiB) << heads;
  }
}

// Goal: the bytes of a kept graph are found, whatever the allocator caches of earlier runs.
TEST(WorkspaceGpu, KeptGraphsAreMeasuredWithoutWhatTheAllocatorKeeps) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const fakes::ShapesOnly fast;
  const auto model = model_of(small_llama(16, 4, 64));
  const OneUnitModel block(*model, UnitId(1));
  const std::vector<int64_t> documents = {512};
  UnitProbe probe(&block, kGpu, 512);
  const ProbeTrace first = probe.run(documents, 512);
  const ProbeTrace again = probe.run(documents, 512);
  EXPECT_EQ(again.saved, first.saved);
  EXPECT_EQ(again.backward, first.backward);
  // The block's queries, keys, values and result, gate and up, and norms' inputs have 2 bytes each.
  const Bytes row = 2 * (1024 + 2 * 256 + 1024 + 2 * 2048 + 1024);
  EXPECT_GE(first.saved, 512 * row);
  EXPECT_LE(first.saved, 2 * 512 * row);
}

// Goal: memory that the probes leave cached is available to the engine's buffers.
TEST(WorkspaceGpu, ProbesLeaveTheGpuToTheEngine) {
  LONGSHORE_NEEDS_GPU();
  prepare_cuda(0);
  const fakes::ShapesOnly fast;
  give_back_cached_memory();
  // On a real GPU the probes load kernels, and the driver needs some memory.
  const Bytes other = gpu_tensors(0).is_cpu() ? 0 : kGiB;
  const Bytes buffers = (cuda_free_bytes(0) - other) / 256 * 256;
  const auto model = model_of(small_llama(16, 4, 64));
  const MeasuredWorkspace measured(
      *model, {.device = kGpu, .run = {2048, 2048}, .cache = {}, .program = {}});
  EXPECT_EQ(measured.units_run(), 3);
  EXPECT_NO_THROW(EngineDevice(
      {.kind = DeviceKind::kCuda, .gpu = 0, .collective = false, .cap = buffers, .owned = buffers},
      nullptr));
}

}  // namespace
}  // namespace longshore
