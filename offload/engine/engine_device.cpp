#include "offload/engine/engine_device.h"

#include <utility>

#include "base/errors.h"
#include "comm/collectives/nccl_communicator.h"
#include "device/bounced_copies.h"
#include "device/compute_threads.h"
#include "device/cuda_stream.h"
#include "device/gpu_tensors.h"

namespace longshore {
namespace {

std::unique_ptr<DeviceMemory> make_memory(const EngineDevice::Options& options) {
  if (options.kind == DeviceKind::kCpu) {
    return std::make_unique<DeviceMemory>(options.cap, options.owned);
  }
  // This precedes all other use of the GPU.
  prepare_cuda(options.gpu);
  give_back_cached_memory();  // of tensors outside of any engine
  return std::make_unique<DeviceMemory>(
      options.cap, options.collective ? make_nccl_arena(options.owned, options.gpu)
                                      : make_cuda_arena(options.owned, options.gpu));
}

}  // namespace

EngineDevice::EngineDevice(const Options& options, std::unique_ptr<CopyEngine> cpu_copies)
    : options_(options), memory_(make_memory(options)), copies_(std::move(cpu_copies)) {
  if (!cuda()) {
    cpu_budget_.emplace(*memory_);
    return;
  }
  cuda_budget_.emplace(*memory_, options.gpu);
  copies_ =
      make_bounced_copies(make_cuda_copy_engine(options.gpu), options.gpu, options.copy_buffers);
}

EngineDevice::~EngineDevice() {
  if (!cuda()) return;
  cuda_budget_.reset();
  give_back_cached_memory();
}

at::Device EngineDevice::torch() const {
  return cuda() ? gpu_tensors(options_.gpu) : at::Device(at::kCPU);
}

std::unique_ptr<GradientSums> EngineDevice::make_gradient_sums(WorkerPool* pool) const {
  return cuda() ? make_cuda_gradient_sums(options_.gpu) : make_cpu_gradient_sums(pool);
}

void EngineDevice::adopt_lane(bool urgent) const {
  adopt_compute_threads();
  if (cuda()) {
    adopt_cuda_stream(options_.gpu, urgent ? StreamPriority::kHigh : StreamPriority::kNormal);
  }
}

void EngineDevice::finish(const std::string& what) const {
  if (cuda()) finish_cuda_work(options_.gpu, what);
}

PlannedBuffers::PlannedBuffers(const TierPlan* plan, DeviceMemory* memory) : plan_(*plan) {
  for (const PlannedBuffer& buffer : plan->device.buffers) {
    buffers_.push_back(memory->carve(buffer.name, buffer.bytes).bytes);
  }
  memory->check_carved();
}

std::span<std::byte> PlannedBuffers::take(BufferKey key) {
  const PlannedBuffer* const buffer = plan_.device.buffer(key);
  if (buffer == nullptr) return {};
  const auto place = static_cast<size_t>(buffer - plan_.device.buffers.data());
  LONGSHORE_CHECK(taken_.insert(place).second) << buffer->name << " is taken twice";
  return buffers_[place];
}

std::vector<std::span<std::byte>> PlannedBuffers::take_parts(BufferKey key) {
  const std::span<std::byte> whole = take(key);
  const auto count = static_cast<size_t>(plan_.step.micro_batches);
  LONGSHORE_CHECK(whole.size() % count == 0)
      << plan_.device.buffer(key)->name << " is not in " << count << " equal parts";
  std::vector<std::span<std::byte>> parts;
  for (size_t i = 0; i < count; ++i) {
    parts.push_back(whole.subspan(i * (whole.size() / count), whole.size() / count));
  }
  return parts;
}

std::span<std::byte> PlannedBuffers::take_states() {
  take(BufferKind::kSequenceStates);
  const ByteRange states = plan_.device.states;
  if (states.bytes == 0) return {};
  LONGSHORE_CHECK(states.end() <= plan_.device.owned) << states.end();
  return {buffers_.front().data() + states.begin, static_cast<size_t>(states.bytes)};
}

void PlannedBuffers::check_taken() const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    LONGSHORE_CHECK(taken_.contains(i)) << plan_.device.buffers[i].name << " is of no use";
  }
}

}  // namespace longshore
