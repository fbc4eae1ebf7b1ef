#include "trainer/device/gpu_check.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <utility>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/texts.h"
#include "device/copy_engine.h"
#include "device/cuda_device.h"
#include "device/cuda_runtime.h"
#include "device/cuda_stream.h"
#include "device/device_memory.h"
#include "device/gpu_tensors.h"
#include "kernels/cross_entropy.h"
#include "kernels/glu.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "model/attention/document_attention.h"
#include "model/families/families.h"
#include "model/models/decoder_model.h"
#include "model/ops/fused_ops.h"
#include "model/parameters/model_spec.h"
#include "offload/engine/engine.h"
#include "offload/engine/probe/measured_workspace.h"
#include "offload/engine/train_step.h"
#include "offload/optimizer/adamw.h"
#include "offload/plan/machine.h"
#include "pinned/pinned_arena.h"
#include "trainer/device/run_environment.h"

namespace longshore {
namespace {

// Returns the tolerance relative to the largest value. Sums have other orders; bf16 has 8 bits.
double limit_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? 2e-4 : 3e-2;
}

class Comparison {
 public:
  void value(const std::string& what, double got, double expected, double limit) {
    if (std::abs(got - expected) <= limit * std::abs(expected)) return;  // false for NaN
    differs(what + ": " + std::to_string(got) + " instead of " + std::to_string(expected));
  }
  void tensor(const std::string& what, const at::Tensor& got, const at::Tensor& expected) {
    const at::Tensor want = expected.to(at::kFloat), have = got.cpu().to(at::kFloat);
    const double largest = want.abs().max().item<double>();
    const double error = (have - want).abs().max().item<double>();
    if (error <= limit_of(expected.scalar_type()) * largest) return;
    differs(what + (expected.scalar_type() == at::kFloat ? ", fp32" : ", bf16") + ": " +
            std::to_string(error) + " apart, values to " + std::to_string(largest));
  }
  // A part that throws adds a difference, and the other parts still run.
  template <typename Work>
  void part(const std::string& name, const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      differs(name + ": " + text.substr(0, text.find('\n')));
    }
  }
  void differs(std::string line) { lines_.push_back(std::move(line)); }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

void compare_copies(int gpu, Comparison& comparison) {
  constexpr size_t kBytes = 8 * static_cast<size_t>(kMiB);
  WorkerPool pool(1);
  const PinnedArena host(2 * kBytes, true, pool);
  const std::span<std::byte> sent = host.bytes().first(kBytes), back = host.bytes().last(kBytes);
  for (size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<std::byte>(i * 31 + i / 4096);
  const auto arena = make_cuda_arena(kBytes, gpu);
  const auto copies = make_cuda_copy_engine(gpu);
  copies->to_device(arena->bytes(), sent);
  copies->to_host(back, arena->bytes());
  copies->finish();
  if (std::memcmp(sent.data(), back.data(), kBytes) != 0) {
    comparison.differs("copies: bytes that went to the GPU and back");
  }
}

void compare_kernels(at::ScalarType dtype, at::Device gpu, Comparison& comparison) {
  const DType kind = dtype == at::kFloat ? DType::kF32 : DType::kBF16;
  constexpr int64_t kRows = 67, kWidth = 192, kHead = 64, kWords = 3001;
  const auto random = [&](int64_t columns) { return at::randn({kRows, columns}).to(dtype); };

  const at::Tensor x = random(kWidth), grad = random(kWidth), weight = random(kWidth)[0].clone();
  at::Tensor y = at::empty_like(x), grad_x = at::empty_like(x), sum = at::zeros({kWidth});
  const kernels::Norm norm{.dtype = kind, .rows = kRows, .width = kWidth, .eps = 1e-5};
  kernels::norm_cpu(norm, 0, kRows, x.data_ptr(), weight.data_ptr(), nullptr, y.data_ptr());
  kernels::norm_backward_cpu(norm, 0, kRows, grad.data_ptr(), x.data_ptr(), weight.data_ptr(),
                             grad_x.data_ptr(), sum.data_ptr<float>(), nullptr);
  const at::Tensor gpu_sum = at::zeros({kWidth}).to(gpu);
  const at::Tensor gpu_x = x.to(gpu), gpu_weight = weight.to(gpu), gpu_grad = grad.to(gpu);
  comparison.tensor("norm", fused::norm(gpu_x, gpu_weight, {}, NormKind::kRms, 1e-5), y);
  comparison.tensor(
      "norm_backward",
      fused::norm_backward(gpu_grad, gpu_x, gpu_weight, NormKind::kRms, 1e-5, gpu_sum, {}), grad_x);
  comparison.tensor("norm_backward, weight", gpu_sum, sum);

  const at::Tensor positions = at::arange(kRows), frequencies = at::rand({kHead / 2});
  const kernels::Rotary rotary{.dtype = kind,
                               .rows = kRows,
                               .heads = kWidth / kHead,
                               .head_dim = kHead,
                               .turned = kHead,
                               .row_stride = kWidth};
  kernels::rotary_cpu(rotary, 0, kRows, x.data_ptr(), positions.data_ptr<int64_t>(),
                      frequencies.data_ptr<float>(), y.data_ptr());
  comparison.tensor("rotary",
                    fused::rotate(gpu_x, positions.to(gpu), {frequencies.to(gpu)}, kHead, 1), y);

  at::Tensor gate = random(kWidth), up = random(kWidth);
  const at::Tensor gpu_gate = gate.clone().to(gpu), gpu_up = up.clone().to(gpu);
  const kernels::Glu glu{
      .dtype = kind, .rows = kRows, .width = kWidth, .gate_stride = kWidth, .up_stride = kWidth};
  kernels::glu_cpu(glu, 0, kRows, gate.data_ptr(), up.data_ptr(), y.data_ptr());
  comparison.tensor("glu", fused::glu(gpu_gate, gpu_up, Activation::kSilu), y);
  kernels::glu_backward_cpu(glu, 0, kRows, grad.data_ptr(), gate.data_ptr(), up.data_ptr());
  fused::glu_backward(gpu_grad, gpu_gate, gpu_up, Activation::kSilu);
  comparison.tensor("glu_backward, gate", gpu_gate, gate);
  comparison.tensor("glu_backward, up", gpu_up, up);

  at::Tensor logits = random(kWords), losses = at::empty({kRows});
  const at::Tensor gpu_logits = logits.clone().to(gpu), targets = positions * 7;
  kernels::cross_entropy_cpu(
      {.dtype = kind, .rows = kRows, .vocabulary = kWords, .scale = 1.0, .gradient = true},
      logits.data_ptr(), targets.data_ptr<int64_t>(), losses.data_ptr<float>());
  comparison.tensor("cross_entropy", fused::cross_entropy(gpu_logits, targets.to(gpu), 1.0, true),
                    losses);
  comparison.tensor("cross_entropy, gradient", gpu_logits, logits);
}

// ---- Other forms of the kernels ----

// A case computes its named results on a device.
using Results = std::vector<std::pair<std::string, at::Tensor>>;
using Case = std::function<Results(const at::Device&)>;
constexpr int64_t kFormRows = 67;

// A row of an odd width has no 16-byte loads.
Case norm_case(const char* name, NormKind kind, int64_t width, at::ScalarType dtype) {
  const at::Tensor x = at::randn({kFormRows, width}).to(dtype), grad = at::randn_like(x);
  const at::Tensor weight = at::randn({width}).to(dtype), bias = at::randn_like(weight);
  return [=](const at::Device& device) -> Results {
    const bool biased = kind == NormKind::kLayer;
    const at::Tensor in = x.to(device), scale = weight.to(device);
    const at::Tensor level = biased ? bias.to(device) : at::Tensor();
    const at::Tensor sums = at::zeros({2, width}).to(device);
    const at::Tensor y = fused::norm(in, scale, level, kind, 1e-5);
    const at::Tensor grad_x = fused::norm_backward(grad.to(device), in, scale, kind, 1e-5, sums[0],
                                                   biased ? sums[1] : at::Tensor());
    const std::string backward = std::string("norm_backward, ") + name;
    return {{std::string("norm, ") + name, y},
            {backward, grad_x},
            {backward + ", weight", sums[0]},
            {backward + ", bias", sums[1]}};
  };
}

// The heads are columns of wider rows.
Case rotary_case(const char* name, int64_t turned, double scale, bool pairs, at::ScalarType dtype) {
  constexpr int64_t kHead = 64, kWidth = 3 * kHead;
  const at::Tensor wide = at::randn({kFormRows, kWidth + kHead}).to(dtype);
  const at::Tensor frequencies = at::rand({turned / 2}), positions = at::arange(kFormRows);
  return [=](const at::Device& device) -> Results {
    const at::Tensor x = wide.to(device).narrow(1, 0, kWidth);
    const fused::Rotation rotation{frequencies.to(device), scale, pairs};
    return {{std::string("rotary, ") + name,
             fused::rotate(x, positions.to(device), rotation, kHead, 1)}};
  };
}

// Gate and up are halves of the rows of one matrix if `strided`.
Case glu_case(const char* name, Activation activation, bool gated, bool strided,
              at::ScalarType dtype) {
  constexpr int64_t kWidth = 192;
  const at::Tensor both = at::randn({kFormRows, 2 * kWidth}).to(dtype);
  const at::Tensor grad = at::randn({kFormRows, kWidth}).to(dtype);
  return [=](const at::Device& device) -> Results {
    const at::Tensor own = both.to(device, /*non_blocking=*/false, /*copy=*/true);
    const auto half = [&](int64_t which) {
      const at::Tensor part = own.narrow(1, which * kWidth, kWidth);
      return strided ? part : part.contiguous();
    };
    const at::Tensor gate = half(0), up = gated ? half(1) : at::Tensor();
    const at::Tensor y = fused::glu(gate, up, activation);
    fused::glu_backward(grad.to(device), gate, up, activation);
    const std::string backward = std::string("glu_backward, ") + name;
    Results results = {{std::string("glu, ") + name, y}, {backward + ", gate", gate}};
    if (gated) results.emplace_back(backward + ", up", up);
    return results;
  };
}

Case convolution_case(const char* name, int64_t count, bool activated, at::ScalarType dtype) {
  constexpr int64_t kChannels = 192;
  const at::Tensor positions = at::cat({at::arange(1), at::arange(2), at::arange(64)});
  const at::Tensor x = at::randn({kFormRows, kChannels}).to(dtype), grad = at::randn_like(x);
  const at::Tensor taps = at::randn({kChannels, 1, count}).to(dtype);
  return [=](const at::Device& device) -> Results {
    const fused::Convolution convolution{.taps = taps.to(device),
                                         .bias = {},
                                         .positions = positions.to(device),
                                         .activated = activated};
    const at::Tensor in = x.to(device);
    const auto own =
        fused::causal_convolution_backward(grad.to(device), in, convolution, true, true);
    const std::string backward = std::string("causal_convolution_backward, ") + name;
    return {
        {std::string("causal_convolution, ") + name, fused::causal_convolution(in, convolution)},
        {backward, own.x},
        {backward + ", taps", own.taps.to(dtype)}};  // terms were rounded to it
  };
}

void compare_forms(at::ScalarType dtype, at::Device gpu, Comparison& comparison) {
  const Case cases[] = {
      norm_case("layer", NormKind::kLayer, 192, dtype),
      norm_case("offset", NormKind::kRmsOffset, 192, dtype),
      norm_case("odd width", NormKind::kRms, 77, dtype),
      rotary_case("part", 32, 1.0, false, dtype),
      rotary_case("pairs", 64, 1.0, true, dtype),
      rotary_case("scaled", 64, 1.25, false, dtype),
      glu_case("gelu", Activation::kGeluTanh, true, false, dtype),
      glu_case("without up", Activation::kSilu, false, false, dtype),
      glu_case("strided", Activation::kSilu, true, true, dtype),
      convolution_case("7 taps", 7, true, dtype),
      convolution_case("linear", 4, false, dtype),
  };
  for (const Case& form : cases) {
    const Results expected = form(at::kCPU), got = form(gpu);
    for (size_t i = 0; i < expected.size(); ++i) {
      comparison.tensor(expected[i].first, got[i].second, expected[i].second);
    }
  }
}

// Compares the passes around the recurrences of mixers, over documents of several lengths.
void compare_mixer_kernels(at::ScalarType dtype, at::Device gpu, Comparison& comparison) {
  constexpr int64_t kHead = 64, kHeads = 3, kChannels = kHeads * kHead, kTaps = 4;
  const std::vector<at::Tensor> documents = {at::arange(1), at::arange(2), at::arange(97)};
  const at::Tensor positions = at::cat(documents);
  const int64_t rows = positions.size(0);
  const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(dtype); };
  const at::Tensor x = random({rows, kChannels}), grad = random({rows, kChannels});
  const at::Tensor gate = random({rows, kChannels}), wide = at::randn({rows, kChannels});
  const at::Tensor taps = random({kChannels, 1, kTaps}), bias = random({kChannels});
  const at::Tensor of_head = random({kHead});
  const auto both = [&](at::Device device) {
    const auto on = [&](const at::Tensor& tensor) { return tensor.to(device); };
    const fused::Convolution convolution{
        .taps = on(taps), .bias = on(bias), .positions = on(positions), .activated = true};
    const auto convolved =
        fused::causal_convolution_backward(on(grad), on(x), convolution, true, true);
    const fused::GatedNorm by_head{kernels::GateOrder::kNormFirst, kHeads, 1e-5};
    const fused::GatedNorm by_group{kernels::GateOrder::kGateFirst, kHeads, 1e-5};
    const auto heads =
        fused::gated_norm_backward(on(grad), on(x), on(gate), on(of_head), by_head, true);
    const auto groups =
        fused::gated_norm_backward(on(grad), on(wide), on(gate), on(bias), by_group, true);
    return std::vector{fused::causal_convolution(on(x), convolution),
                       convolved.x,
                       convolved.taps.to(dtype),  // terms were rounded to it
                       convolved.bias.to(dtype),
                       fused::gated_norm(on(x), on(gate), on(of_head), by_head),
                       heads.x,
                       heads.gate,
                       heads.weight,
                       fused::gated_norm(on(wide), on(gate), on(bias), by_group),
                       groups.x,
                       groups.gate,
                       groups.weight};
  };
  const auto expected = both(at::kCPU), got = both(gpu);
  const char* const names[] = {"causal_convolution",
                               "causal_convolution_backward",
                               "causal_convolution_backward, taps",
                               "causal_convolution_backward, bias",
                               "gated_norm by heads",
                               "gated_norm_backward by heads, x",
                               "gated_norm_backward by heads, gate",
                               "gated_norm_backward by heads, weight",
                               "gated_norm by groups",
                               "gated_norm_backward by groups, x",
                               "gated_norm_backward by groups, gate",
                               "gated_norm_backward by groups, weight"};
  for (size_t i = 0; i < expected.size(); ++i) comparison.tensor(names[i], got[i], expected[i]);
}

// Heads of these sizes take other kernels on some GPUs, or none of FlashAttention's.
constexpr int64_t kHeadSizes[] = {64, 80, 96, 112, 128, 160, 192, 224, 256};

void compare_attention(int64_t head, at::ScalarType dtype, at::Device gpu, Comparison& comparison) {
  const AttentionShape shape{.heads = 4,
                             .kv_heads = 2,
                             .head_dim = head,
                             .window = 0,
                             .scale = 1.0 / std::sqrt(static_cast<double>(head)),
                             .cap = 0.0};
  const std::vector<int64_t> starts = {0, 1, 130, 200};
  const auto random = [&](int64_t heads) { return at::randn({200, heads * head}).to(dtype); };
  const at::Tensor q = random(4), k = random(2), v = random(2), grad = random(4);
  const auto both = [&](at::Device device) {
    const at::Tensor a = q.to(device), b = k.to(device), c = v.to(device);
    const AttentionResult result = attend_forward(a, b, c, shape, starts);
    std::vector<at::Tensor> all = attend_backward(grad.to(device), a, b, c, result, shape, starts);
    all.push_back(result.out);
    return all;
  };
  const auto expected = both(at::kCPU), got = both(gpu);
  const char* const names[] = {"grad q", "grad k", "grad v", "out"};
  for (size_t i = 0; i < expected.size(); ++i) {
    comparison.tensor("attention with heads of " + std::to_string(head) + ", " + names[i], got[i],
                      expected[i]);
  }
}

// ---- Training steps of a tiny model ----

constexpr const char* kTiny =
    R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})";
constexpr int64_t kPositions = 24;
constexpr int64_t kSteps = 3;

struct Trained {
  std::vector<double> losses, norms;
};

Trained train(const Model& model, const UnitCosts& costs, DeviceKind device, DType compute,
              int gpu) {
  PlanInputs inputs;
  inputs.model = &model.spec();
  inputs.costs = costs;
  inputs.state = {.format = StateFormat::kSplitBf16, .compute = compute, .drain = compute};
  inputs.sequences_per_step = 2;
  inputs.max_tokens = kPositions;
  inputs.device = device;
  inputs.device_cap = kGiB;
  RankGroups groups;
  groups.gpu = gpu;
  Engine engine(&model, make_tier_plan(inputs, probe_machine()),
                std::make_unique<AdamWRule>(AdamWOptions{}), groups);
  engine.load([](const std::string& name, int64_t begin, std::span<float> out) {
    const bool norm = name.find("norm") != std::string::npos;
    const auto phase = static_cast<double>(hash64(name) % 1000);
    for (size_t i = 0; i < out.size(); ++i) {
      const double turn = phase + 1.7 * static_cast<double>(begin + static_cast<int64_t>(i));
      out[i] = static_cast<float>((norm ? 1.0 : 0.0) + 0.2 * std::sin(turn));
    }
  });
  std::vector<int64_t> tokens(kPositions), positions(kPositions), targets(kPositions);
  std::iota(positions.begin(), positions.end(), 0);
  for (int64_t i = 0; i < kPositions; ++i) tokens[static_cast<size_t>(i)] = i * i % 61;
  for (int64_t i = 0; i < kPositions; ++i) targets[static_cast<size_t>(i)] = (i * 5 + 3) % 64;
  const std::vector<Batch> batches(2, Batch(tokens, positions, targets, {0, kPositions}));
  Trained trained;
  for (int64_t step = 0; step < kSteps; ++step) {
    const StepOutcome outcome = train_step(engine, {.batches = engine.batches().load(batches),
                                                    .loss_terms = 2 * kPositions,
                                                    .lr = 1e-2,
                                                    .max_grad_norm = 1.0});
    trained.losses.push_back(outcome.loss);
    trained.norms.push_back(outcome.norm.norm);
  }
  return trained;
}

void compare_steps(int gpu, Comparison& comparison) {
  const ArchSpec arch = read_arch_spec(Json::parse(kTiny), "a tiny model");
  const DecoderModel model(arch, make_model_spec(arch, {}));
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const UnitCosts costs = unit_costs(model, compute, 1, {kPositions, kPositions});
    const Trained expected = train(model, costs, DeviceKind::kCpu, compute, gpu);
    const Trained got = train(model, costs, DeviceKind::kCuda, compute, gpu);
    const std::string name = compute == DType::kF32 ? "fp32" : "bf16";
    const double limit = compute == DType::kF32 ? 1e-4 : 2e-2;
    for (size_t i = 0; i < expected.losses.size(); ++i) {
      const std::string step = "step " + std::to_string(i + 1) + " of a tiny model, " + name;
      comparison.value(step + ", loss", got.losses[i], expected.losses[i], limit);
      comparison.value(step + ", norm", got.norms[i], expected.norms[i], 10 * limit);
    }
  }
}

std::string how_it_ended(const SelfCheck& check, const ChildEnd& ended) {
  if (ended.in_time) return ended.text();
  return "it did not end within " + std::to_string(check.limit.count() / 1000) + " s";
}

std::string memory_file(const SelfCheck& check) {
  return check.directory + "/" + hash_text(hash64(check.identity));
}

bool passed_before(const SelfCheck& check) {
  std::error_code ignored;
  if (!std::filesystem::exists(memory_file(check), ignored)) return false;
  return read_own_file(memory_file(check), kMiB) == check.identity;
}

}  // namespace

std::vector<std::string> check_gpu(int gpu) {
  prepare_cuda(gpu);
  at::manual_seed(17);
  const at::NoGradGuard no_grad;
  const at::Device device = gpu_tensors(gpu);
  Comparison comparison;
  comparison.part("copies", [&] { compare_copies(gpu, comparison); });
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    comparison.part("kernels", [&] { compare_kernels(dtype, device, comparison); });
    comparison.part("forms of kernels", [&] { compare_forms(dtype, device, comparison); });
    comparison.part("kernels of mixers", [&] { compare_mixer_kernels(dtype, device, comparison); });
    comparison.part("attention", [&] {
      for (const int64_t head : kHeadSizes) compare_attention(head, dtype, device, comparison);
    });
  }
  comparison.part("steps of a tiny model", [&] {
    const at::AutoGradMode grad(true);
    compare_steps(gpu, comparison);
  });
  return comparison.take();
}

SelfCheck self_check_of(const CudaDevice& gpu, int number, const std::string& cache) {
  return {.command = {"/proc/self/exe", "check", "gpu", "--gpu", std::to_string(number)},
          .directory = cache + "/gpu",
          .identity = gpu.name + "\ncompute " + std::to_string(gpu.compute_major) + "." +
                      std::to_string(gpu.compute_minor) + "\nmemory " +
                      std::to_string(gpu.memory_bytes) + "\ndriver " + cuda_driver_version() +
                      "\nLibTorch " TORCH_VERSION "\nbuild " + build_id() + "\n"};
}

void require_sound_gpu(const SelfCheck& check) {
  if (passed_before(check)) return;
  log_info("the first run on this GPU and driver: comparing it with the CPU");
  const ChildEnd ended = run_child(check.command, check.limit);
  if (ended.good()) {
    make_directories(check.directory);
    replace_file(memory_file(check), check.identity);
    return;
  }
  std::string said;
  for (size_t begin = 0; begin < ended.output.size();) {
    const size_t end = std::min(ended.output.find('\n', begin), ended.output.size());
    said += "\n  " + printable(ended.output.substr(begin, end - begin));
    begin = end + 1;
  }
  throw GpuError("device.kind: the GPU's self-check failed, " + how_it_ended(check, ended) + said +
                 "\nNothing was trained. Please report the lines above with the output of "
                 "`longshore version` and `nvidia-smi`; device.kind = \"cpu\" trains on the CPU");
}

}  // namespace longshore
