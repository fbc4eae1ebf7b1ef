#include "offload/engine/probe/measured_workspace.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "base/errors.h"
#include "base/json.h"
#include "base/measurement.h"
#include "base/mutex.h"
#include "base/processor.h"
#include "device/cuda_runtime.h"
#include "device/gpu_tensors.h"
#include "model/attention/gpu_attention.h"

namespace longshore {
namespace {

// SkippedProducts: matrix products on the CPU that allocate their results and compute nothing. A
// probe for a device that is not installed measures bytes only: without the products a block of a
// 70B model takes a second, with them minutes on a CPU without bf16 instructions. Its operands are
// zero, so the results are those of the products. Lives on the probe's thread while the process
// computes nothing else.

class SkippedProducts {
 public:
  SkippedProducts();
  SkippedProducts(const SkippedProducts&) = delete;
  SkippedProducts& operator=(const SkippedProducts&) = delete;
  ~SkippedProducts() = default;

 private:
  // LibTorch warns of kernels that are replaced.
  struct Quiet : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  AbsentGpu absent_;
  Quiet quiet_;
  c10::WarningUtils::WarningHandlerGuard guard_;
  torch::Library kernels_;  // removed at the end, so that LibTorch's own serve again
};

at::Tensor& scale(at::Tensor& values, const at::Scalar& beta) {
  if (beta.toDouble() == 0.0) return values.zero_();  // what they were is not read
  return beta.toDouble() == 1.0 ? values : values.mul_(beta);
}

at::Tensor product(const at::Tensor& left, const at::Tensor& right) {
  return at::zeros({left.size(0), right.size(1)}, left.options());
}

at::Tensor& product_out(const at::Tensor&, const at::Tensor&, at::Tensor& out) {
  return out.zero_();
}

at::Tensor sum(const at::Tensor& self, const at::Tensor& left, const at::Tensor& right,
               const at::Scalar& beta, const at::Scalar&) {
  at::Tensor out = at::empty({left.size(0), right.size(1)}, left.options());
  out.copy_(self);
  return scale(out, beta);
}

at::Tensor& sum_out(const at::Tensor& self, const at::Tensor&, const at::Tensor&,
                    const at::Scalar& beta, const at::Scalar&, at::Tensor& out) {
  if (!out.is_same(self)) out.copy_(self);
  return scale(out, beta);
}

at::Tensor& sum_in_place(at::Tensor& self, const at::Tensor&, const at::Tensor&,
                         const at::Scalar& beta, const at::Scalar&) {
  return scale(self, beta);
}

SkippedProducts::SkippedProducts()
    : guard_(&quiet_),
      kernels_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {
  kernels_.impl("mm", &product);
  kernels_.impl("mm.out", &product_out);
  kernels_.impl("addmm", &sum);
  kernels_.impl("addmm.out", &sum_out);
  kernels_.impl("addmm_", &sum_in_place);
}

// oneDNN's scratch for a product in bf16 on a CPU, for each thread: up to 0.8 MB was measured (Xeon
// with AMX), more for few rows than for many, so that a micro-batch with few trained positions may
// take more than the one that is measured.
constexpr Bytes kProductScratch = kMiB;

constexpr int64_t kHeadMultiple = 32;
constexpr double kBeyondCounting = 0x1p60;

int64_t quotient_up(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

// One call of the kernel.
struct Call {
  int64_t rows = 0, documents = 0;
  bool alone = true;  // false: results are copied into the micro-batch's
};

double scratch_of(const AttentionHeads& attention, const Call& call, int64_t processors) {
  if (attention.heads == 0) return 0.0;
  const int64_t sets = quotient_up(processors, call.documents * attention.heads);
  const int64_t row = attention.heads * align_up(attention.head_dim, kHeadMultiple);
  const auto rows = static_cast<double>(call.rows);
  const double padded = rows + static_cast<double>(kFlashPadding * call.documents);
  const double sums = static_cast<double>(sets * row) * padded * 4.0;
  const double softmax = static_cast<double>(attention.heads) * padded * 4.0;
  const bool grouped = attention.kv_heads != attention.heads;
  const double keys_and_values = grouped ? 2.0 * static_cast<double>(row) * rows * 2.0 : 0.0;
  const int64_t result = (attention.heads + 2 * attention.kv_heads) * attention.head_dim;
  const double copied = call.alone ? 0.0 : static_cast<double>(result) * rows * 2.0;
  return std::min(sums + softmax + keys_and_values + copied, kBeyondCounting);
}

// Returns the largest scratch of a micro-batch whose documents have equal lengths.
double scratch_of_equal(const AttentionHeads& attention, int64_t positions, int64_t document,
                        int64_t processors) {
  const int64_t documents = quotient_up(positions, document);
  const int64_t most = flash_backward_documents(positions);
  const int64_t together = std::min(documents, most);
  return scratch_of(attention,
                    {.rows = std::min(positions, together * document),
                     .documents = together,
                     .alone = documents <= most},
                    processors);
}

// Returns the largest scratch over all splits of a micro-batch, or a smaller one, into documents.
// Fewer documents in a call need more sets of sums for the same rows, so all numbers are tried.
double most_scratch(const AttentionHeads& attention, int64_t positions, int64_t longest,
                    int64_t processors) {
  double worst = 0.0;
  const int64_t most = flash_backward_documents(positions);
  // From this number of documents on, one set suffices.
  const int64_t single = quotient_up(processors, std::max<int64_t>(1, attention.heads));
  for (int64_t documents = 1; documents <= most; ++documents) {
    if (documents > single) documents = most;
    // A call of very short documents may come before; its rows do not count.
    const Call call = {.rows = std::min(positions, documents * longest),
                       .documents = documents,
                       .alone = positions <= most};
    worst = std::max(worst, scratch_of(attention, call, processors));
  }
  return worst;
}

}  // namespace

GpuWork gpu_work(const UnitCode& unit, DType compute) {
  const UnitTraits traits = unit.traits({.device = DeviceKind::kCuda, .compute = compute});
  return {.attention = traits.attention,
          .positions_at_once = traits.positions_at_once,
          .of_position = traits.gpu_bytes_of_position};
}

Bytes gpu_chunk_bytes(const GpuWork& work, int64_t positions) {
  return std::min(positions, work.positions_at_once) * work.of_position;
}

Bytes gpu_scratch(const AttentionHeads& attention, int64_t positions, int64_t longest_document,
                  int64_t processors) {
  return static_cast<Bytes>(
      most_scratch(attention, positions, std::min(positions, longest_document), processors));
}

Bytes gpu_scratch_beyond(const AttentionHeads& attention, int64_t positions,
                         int64_t longest_document, const std::vector<int64_t>& documents,
                         int64_t processors) {
  const int64_t longest = std::min(positions, longest_document);
  double measured = 0.0;
  for (const int64_t document : documents) {
    measured = std::max(
        measured, scratch_of_equal(attention, positions, std::min(document, longest), processors));
  }
  return static_cast<Bytes>(
      std::max(0.0, most_scratch(attention, positions, longest, processors) - measured));
}

namespace {

// Returns a rough speed, at most 50 % too slow. It only selects the sizes of the probed shapes, and
// is equal on all machines of a kind, so that ranks and repeated runs probe the same shapes.
double flops_of(const ProbeDevice& device, int threads) {
  if (device.kind == DeviceKind::kCuda) return 2e13;
  const bool native = device.compute == DType::kF32 || cpu_has_avx512();
  return (native ? 2.5e10 : 2.5e9) * threads;
}

std::string device_name(const ProbeDevice& device) {
  if (device.kind == DeviceKind::kCpu) return "cpu\n" + at::get_cpu_capability();
  const std::vector<CudaDevice> gpus = cuda_devices();
  return "gpu\n" + gpus.at(static_cast<size_t>(device.gpu)).name;
}

constexpr std::chrono::seconds kSlow{2};

// Runs work on a new thread with the process's compute threads. LibTorch's helpers end with it.
// Calls `slow` if the work takes longer than kSlow.
void on_own_thread(const std::function<void()>& work, const std::function<void()>& slow) {
  std::promise<void> done;
  std::future<void> result = done.get_future();
  std::thread thread([&] {
    try {
      work();
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  if (result.wait_for(kSlow) == std::future_status::timeout) slow();
  thread.join();
  result.get();
}

// Returns all of a GPU's memory; 0 for the CPU, whose runs have a limit from the caller.
Bytes memory_of(const ProbeDevice& device) {
  if (device.kind == DeviceKind::kCpu) return 0;
  return cuda_devices().at(static_cast<size_t>(device.gpu)).memory_bytes;
}

// Runs the inputs. The largest are marked too large if a GPU lacks even the buffers for them.
std::vector<ProbeSample> samples_of(const OneUnitModel& alone, const ProbeDevice& device,
                                    std::vector<ProbeInput> inputs) {
  std::vector<ProbeSample> samples;
  const Bytes memory = memory_of(device);
  const auto too_large = [&](const ProbeInput& input) {
    if (device.kind == DeviceKind::kCpu) throw;
    samples.push_back(
        {input, {.forward = memory, .saved = 0, .backward = {memory}, .too_large = true}});
  };
  while (!inputs.empty()) {
    const int64_t most = std::ranges::max(inputs, {}, &ProbeInput::positions).positions;
    std::optional<UnitProbe> probe;
    try {
      probe.emplace(&alone, device, most);
    } catch (const OutOfMemoryError&) {
      for (const ProbeInput& input : inputs) {
        if (input.positions == most) too_large(input);
      }
      std::erase_if(inputs, [&](const ProbeInput& input) { return input.positions == most; });
      continue;
    }
    for (const ProbeInput& input : inputs) {
      try {
        samples.push_back({input, probe->run(input)});
      } catch (const OutOfMemoryError&) {
        too_large(input);
      } catch (const c10::Error&) {
        // A custom model may reject some shapes, but not all.
        if (&input == &inputs.back() && samples.empty()) throw;
      }
    }
    inputs.clear();
  }
  return samples;
}

Bytes gradient_bytes(const UnitSpec& unit, DType compute) {
  Bytes bytes = 0;
  for (const ParamSpec& parameter : unit.parameters) {
    if (!parameter.frozen) bytes += parameter.elements() * width_of(compute);
  }
  return bytes;
}

}  // namespace

MeasuredWorkspace::MeasuredWorkspace(const Model& model, const ProbeOptions& options)
    : options_(options) {
  const auto begin = std::chrono::steady_clock::now();
  std::map<std::string, size_t> known;
  for (const UnitSpec& unit : model.spec().units) {
    const std::string identity = OneUnitModel(model, unit.id).identity(options.device.compute);
    const auto found = identity.empty() ? known.end() : known.find(identity);
    if (found != known.end()) {
      of_unit_.push_back(found->second);
      continue;
    }
    if (!identity.empty()) known[identity] = distinct_.size();
    of_unit_.push_back(distinct_.size());
    distinct_.push_back(
        {.unit = unit.id,
         .work = unit_work(model, unit.id, options.run.longest_document, options.device.kind),
         .gpu = gpu_work(model.code_of(unit.id), options.device.compute),
         .samples = {},
         .gradients = gradient_bytes(unit, options.device.compute)});
    measure(model, distinct_.back(), identity);
  }
  seconds_ = seconds_since(begin);
}

void MeasuredWorkspace::measure(const Model& model, Distinct& distinct,
                                const std::string& identity) {
  const OneUnitModel alone(model, distinct.unit);
  std::vector<ProbeInput> inputs = probe_inputs(
      distinct.work, options_.run, flops_of(options_.device, options_.threads), options_.whole);
  std::erase_if(inputs, [&](const ProbeInput& input) {
    const Bytes held = probe_bytes(alone, options_.device.compute, input.positions);
    return options_.device.kind == DeviceKind::kCpu && held + distinct.gradients > options_.memory;
  });
  if (inputs.empty()) return;
  const SampleCache cache(identity.empty() ? std::string() : options_.cache);
  std::string key = options_.program + "\nLibTorch " TORCH_VERSION "\n" +
                    device_name(options_.device) + "\nthreads " + std::to_string(options_.threads) +
                    "\ndtype " + std::to_string(static_cast<int>(options_.device.compute)) + "\n" +
                    (options_.elsewhere ? "without products\n" : "") + identity;
  for (const ProbeInput& input : inputs) {
    key += "\n" + std::to_string(input.kind) + " " + std::to_string(input.positions) + " " +
           std::to_string(input.document) + " " + std::to_string(input.trained);
  }
  if (auto kept = cache.find(key)) {
    distinct.samples = std::move(*kept);
    if (!distinct.samples.empty()) return;
  }
  // LibTorch's memory counter covers the whole process.
  static Mutex one_at_a_time;
  const MutexLock lock(one_at_a_time);
  const auto run = [&] {
    std::optional<SkippedProducts> skipped;
    if (options_.elsewhere) skipped.emplace();
    distinct.samples = samples_of(alone, options_.device, inputs);
  };
  on_own_thread(run, [&] {
    if (options_.on_slow) options_.on_slow(model.spec().unit(distinct.unit).name);
  });
  units_run_ += 1;
  // Other users of the GPU's memory may leave, so samples that are too large are not cached.
  const auto too_large = [](const ProbeSample& sample) { return sample.trace.too_large; };
  if (std::ranges::none_of(distinct.samples, too_large)) cache.keep(key, distinct.samples);
}

UnitCosts MeasuredWorkspace::costs() const {
  std::vector<std::optional<WorkspaceFit>> fits;
  std::vector<Bytes> gradients;
  std::vector<GpuWork> gpu;
  std::vector<std::vector<int64_t>> documents;
  for (const Distinct& distinct : distinct_) {
    gpu.push_back(distinct.gpu);
    documents.push_back(distinct.work.documents);
    gradients.push_back(distinct.gradients);
    if (distinct.samples.empty()) {
      fits.emplace_back();
    } else {
      fits.emplace_back(WorkspaceFit(distinct.work, options_.run, distinct.samples));
    }
  }
  // With fp32 another attention kernel runs.
  const bool flash =
      options_.device.kind == DeviceKind::kCuda && options_.device.compute != DType::kF32;
  const int64_t processors =
      flash ? cuda_devices().at(static_cast<size_t>(options_.device.gpu)).processors : 0;
  const bool products = options_.device.kind == DeviceKind::kCpu && !options_.elsewhere &&
                        options_.device.compute == DType::kBF16;
  const Bytes least = products ? options_.threads * kProductScratch : 0;
  return [fits = std::move(fits), gradients = std::move(gradients), gpu = std::move(gpu),
          documents = std::move(documents), of_unit = of_unit_, elsewhere = options_.elsewhere,
          processors, least](int64_t positions, int64_t longest_document) {
    std::vector<UnitCost> of_distinct;
    for (size_t i = 0; i < fits.size(); ++i) {
      // The unit did not run for lack of memory, so the plan cannot fit. Its gradients remain.
      of_distinct.push_back(fits[i] ? fits[i]->at({positions, longest_document})
                                    : UnitCost{.forward = 0,
                                               .backward = gradients[i],
                                               .saved = 0,
                                               .source = CostSource::kEstimated});
      of_distinct.back().forward = std::max(of_distinct.back().forward, least);
      of_distinct.back().backward = std::max(of_distinct.back().backward, least);
      if (processors > 0) {
        of_distinct.back().backward += gpu_scratch_beyond(
            gpu[i].attention, positions, longest_document, documents[i], processors);
      }
      if (!elsewhere) continue;
      const Bytes chunk = gpu_chunk_bytes(gpu[i], positions);
      of_distinct.back().forward += chunk;
      of_distinct.back().backward +=
          chunk + gpu_scratch(gpu[i].attention, positions, longest_document, kMostProcessors);
      of_distinct.back().source = CostSource::kEstimated;
    }
    std::vector<UnitCost> costs;
    for (const size_t index : of_unit) costs.push_back(of_distinct[index]);
    return costs;
  };
}

std::string MeasuredWorkspace::text() const {
  Json list = Json::array();
  for (const Distinct& distinct : distinct_) {
    list.push_back(samples_to_text("", distinct.samples));
  }
  return list.dump();
}

void MeasuredWorkspace::take_largest(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    const Json list = parse_json(text, JsonLimits{}, "another rank's measured workspace");
    for (size_t i = 0; i < distinct_.size(); ++i) {
      auto samples = samples_of_text(list.at(i).get<std::string>(), "");
      LONGSHORE_CHECK(samples.has_value());
      std::vector<ProbeSample>& own = distinct_[i].samples;
      for (const ProbeSample& other : *samples) {
        const auto same = std::ranges::find(own, other.input, &ProbeSample::input);
        if (same == own.end()) {
          own.push_back(other);
        } else {
          same->trace = larger_of(same->trace, other.trace);
        }
      }
    }
  }
}

UnitCosts unit_costs(const Model& model, DType compute, int threads, const MicroBatchShape& run) {
  return MeasuredWorkspace(model,
                           {.device = {.kind = DeviceKind::kCpu, .gpu = 0, .compute = compute},
                            .threads = threads,
                            .run = run,
                            .cache = {},
                            .program = {}})
      .costs();
}

}  // namespace longshore
