#include "offload/staging/gradient_drain.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "device/copy_engine.h"
#include "device/cuda_runtime.h"
#include "device/cuda_stream.h"
#include "device/device_memory.h"
#include "kernels/gradient.h"

namespace longshore {
namespace {

// The number of values of one task.
constexpr int64_t kTaskElements = 16 * kernels::kSquareBlock;

class CpuGradientSums final : public GradientSums {
 public:
  explicit CpuGradientSums(WorkerPool* pool)
      : pool_(pool), block_squares_(kernels::square_blocks(kMostElements)) {}

  void add(std::span<const float> values, std::span<uint16_t> bf16, int32_t) override {
    const auto elements = static_cast<int64_t>(values.size());
    LONGSHORE_CHECK(elements <= kMostElements) << elements;
    pool_->for_each_block((elements + kTaskElements - 1) / kTaskElements, [&](int64_t task) {
      const int64_t begin = task * kTaskElements;
      const int64_t count = std::min(kTaskElements, elements - begin);
      kernels::cast_and_square_blocks(
          values.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
          bf16.empty() ? nullptr : bf16.data() + begin,
          block_squares_.data() + begin / kernels::kSquareBlock);
    });
    const auto blocks = static_cast<size_t>(kernels::square_blocks(elements));
    sum_ += kernels::add_block_sums(std::span(block_squares_).first(blocks));
  }

  void copied(int32_t) override {}
  void end_piece() override { total_ += std::exchange(sum_, 0.0); }
  double take() override {
    end_piece();
    return std::exchange(total_, 0.0);
  }

 private:
  static constexpr int64_t kMostElements = chunks_on(DeviceKind::kCpu).elements;

  WorkerPool* pool_;
  std::vector<double> block_squares_;
  double sum_ = 0.0;    // of the current piece
  double total_ = 0.0;  // of earlier pieces
};

// The chunks' sums stay on the GPU, so the host waits once per unit.
class CudaGradientSums final : public GradientSums {
 public:
  explicit CudaGradientSums(int device)
      : device_(device),
        arena_(make_cuda_arena(
            align_up((kBlocks + kMostChunks) * static_cast<Bytes>(sizeof(double)), 256), device)),
        copies_(make_cuda_copy_engine(device)),
        casts_(device, kBuffers + 1),
        sums_(kMostChunks),
        ends_(kMostChunks) {}

  void add(std::span<const float> values, std::span<uint16_t> bf16, int32_t buffer) override {
    LONGSHORE_CHECK(static_cast<int64_t>(values.size()) <= kMostElements) << values.size();
    LONGSHORE_CHECK(buffer >= 0 && buffer < kBuffers) << buffer;
    if (chunks_ == kMostChunks) fetch();
    if (chunks_ == 0) {  // waits for the kernels that wrote the values
      casts_.mark(kBuffers);
      casts_.wait_for(kBuffers);
    }
    if (!bf16.empty()) casts_.wait_for(buffer);
    kernels::cast_and_square_cuda(values.data(), static_cast<int64_t>(values.size()),
                                  bf16.empty() ? nullptr : bf16.data(), blocks(),
                                  results() + chunks_, casts_.handle());
    casts_.join();
    ends_[static_cast<size_t>(chunks_)] = false;
    chunks_ += 1;
  }

  void copied(int32_t buffer) override { casts_.mark(buffer); }

  void end_piece() override {
    if (chunks_ > 0) {
      ends_[static_cast<size_t>(chunks_) - 1] = true;
    } else {
      fold();
    }
  }

  double take() override {
    fetch();
    fold();
    return std::exchange(total_, 0.0);
  }

 private:
  static constexpr int64_t kMostElements = chunks_on(DeviceKind::kCuda).elements;
  static constexpr int32_t kBuffers = chunks_on(DeviceKind::kCuda).buffers;
  static constexpr int64_t kBlocks = kernels::square_blocks(kMostElements);
  static constexpr int64_t kMostChunks = 1024;

  double* blocks() const { return reinterpret_cast<double*>(arena_->bytes().data()); }
  double* results() const { return blocks() + kBlocks; }

  void fetch() {
    if (chunks_ == 0) return;
    const auto count = static_cast<size_t>(std::exchange(chunks_, 0));
    copies_->to_host(std::as_writable_bytes(std::span(sums_).first(count)),
                     std::as_bytes(std::span(results(), count)));
    finish_cuda_work(device_, "the sum of a gradient's squares");
    for (size_t i = 0; i < count; ++i) {
      sum_ += sums_[i];
      if (ends_[i]) fold();
    }
  }
  void fold() { total_ += std::exchange(sum_, 0.0); }

  int device_;
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<CopyEngine> copies_;  // separate: 8 bytes per chunk are no payload
  CudaSideStream casts_;                // marks: one per buffer's copy, one for the first chunk
  std::vector<double> sums_;
  std::vector<bool> ends_;  // by chunk: whether it ends its piece
  int64_t chunks_ = 0;
  double sum_ = 0.0;    // of the current piece
  double total_ = 0.0;  // of earlier pieces
};

}  // namespace

std::unique_ptr<GradientSums> make_cpu_gradient_sums(WorkerPool* pool) {
  return std::make_unique<CpuGradientSums>(pool);
}

std::unique_ptr<GradientSums> make_cuda_gradient_sums(int device) {
  require_gpu(device);
  return std::make_unique<CudaGradientSums>(device);
}

namespace {

// Slots begin at pages, as slabs do.
constexpr Bytes kPlaceAlignment = 4096;

Bytes gradient_bytes(const FlatLayout& layout, DType dtype) {
  return layout.trainable_elements() / layout.shard_factor() * width_of(dtype);
}

constexpr Bytes kBufferAlignment = 256;

int64_t trainable_shard_elements(const FlatLayout& layout) {
  return layout.trainable_elements() / layout.shard_factor();
}

// Returns the bytes of one staging buffer.
Bytes buffer_bytes(const std::vector<FlatLayout>& layouts, DType drain, int64_t chunk_elements) {
  int64_t largest = 0;
  for (const FlatLayout& layout : layouts) {
    largest = std::max(largest, trainable_shard_elements(layout));
  }
  return align_up(std::min(largest, chunk_elements) * width_of(drain), kBufferAlignment);
}

}  // namespace

HostGradients::HostGradients(const std::vector<FlatLayout>& layouts,
                             const HostGradientsOptions& options, bool register_with_gpus,
                             WorkerPool& pool)
    : options_(options),
      arena_(planned_bytes(layouts, options), register_with_gpus, pool),
      ring_("host gradient slot", options.ring) {
  Bytes cursor = 0;
  for (const FlatLayout& layout : layouts) {
    Unit& unit =
        units_.emplace_back(Unit{.begin = cursor, .bytes = gradient_bytes(layout, options.dtype)});
    cursor += align_up(unit.bytes, kPlaceAlignment);
    Bytes end = 0;
    for (const Segment segment : kTrainedSegments) {
      const Bytes own = layout.shard_elements(segment) * width_of(options.dtype);
      unit.segments[static_cast<size_t>(segment)] = {end, own};
      end += own;
    }
    LONGSHORE_CHECK(end == unit.bytes) << end << " bytes in segments, " << unit.bytes << " in all";
  }
}

Bytes HostGradients::planned_bytes(const std::vector<FlatLayout>& layouts,
                                   const HostGradientsOptions& options) {
  Bytes sum = 0;
  Bytes largest = 0;
  for (const FlatLayout& layout : layouts) {
    const Bytes place = align_up(gradient_bytes(layout, options.dtype), kPlaceAlignment);
    sum += place;
    largest = std::max(largest, place);
  }
  return options.ring > 0 ? options.ring * largest : sum;
}

std::span<std::byte> HostGradients::gradient(UnitId id) {
  const Unit& unit = of_unit(units_, id);
  Bytes begin = unit.begin;
  if (options_.ring > 0) {
    const std::optional<HostGradientSlot> slot = ring_.slot_of(id);
    LONGSHORE_CHECK(slot.has_value())
        << "the gradient of unit " << id << " has no host gradient slot";
    begin = arena_.size_bytes() / options_.ring * slot->value;
  }
  return arena_.bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(unit.bytes));
}

std::span<std::byte> HostGradients::segment(UnitId unit, Segment segment) {
  const auto [begin, bytes] = of_unit(units_, unit).segments.at(static_cast<size_t>(segment));
  return gradient(unit).subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
}

Bytes GradientDrain::planned_staging_bytes(const std::vector<FlatLayout>& layouts, DType drain,
                                           DeviceKind device) {
  if (drain == DType::kF32) return 0;
  const GradientSums::Chunks chunks = GradientSums::chunks_on(device);
  return chunks.buffers * buffer_bytes(layouts, drain, chunks.elements);
}

GradientDrain::GradientDrain(HostGradients* host, CopyEngine* copies,
                             const std::vector<FlatLayout>& layouts, Rank rank,
                             std::span<std::byte> staging, DeviceKind device,
                             std::unique_ptr<GradientSums> sums)
    : host_(host),
      copies_(copies),
      sums_(std::move(sums)),
      chunks_(GradientSums::chunks_on(device)),
      squares_(layouts.size()) {
  LONGSHORE_CHECK(static_cast<Bytes>(staging.size()) >=
                  planned_staging_bytes(layouts, host->dtype(), device));
  const auto each = static_cast<size_t>(buffer_bytes(layouts, host->dtype(), chunks_.elements));
  for (size_t i = 0; host->dtype() != DType::kF32 && i < static_cast<size_t>(chunks_.buffers);
       ++i) {
    staging_.push_back(staging.subspan(i * each, each));
  }
  for (const FlatLayout& layout : layouts) {
    std::vector<Piece> pieces;
    for (const ShardPiece& piece : layout.trained_pieces(rank)) {
      const int64_t before = layout.shard_elements_before(piece.segment);
      pieces.push_back({layout.shard(piece.segment, rank).begin + piece.shard_begin,
                        before + piece.shard_begin, piece.elements});
    }
    pieces_.push_back(std::move(pieces));
    flat_elements_.push_back(layout.trainable_elements());
  }
}

GradientDrain::GradientDrain(HostGradients* host, CopyEngine* copies,
                             const std::vector<FlatLayout>& layouts, Rank rank,
                             std::span<std::byte> staging, WorkerPool* pool)
    : GradientDrain(host, copies, layouts, rank, staging, DeviceKind::kCpu,
                    make_cpu_gradient_sums(pool)) {}

double GradientDrain::drain(UnitId unit, std::span<const float> sums) {
  const auto index = static_cast<size_t>(unit.value);
  LONGSHORE_CHECK(index < pieces_.size()) << "unit " << unit;
  LONGSHORE_CHECK(!squares_[index].has_value()) << "unit " << unit << " was drained in this step";
  LONGSHORE_CHECK(static_cast<int64_t>(sums.size()) == flat_elements_[index])
      << "unit " << unit << ": " << sums.size() << " of " << flat_elements_[index];
  for (const Piece& piece : pieces_[index]) drain_piece(unit, piece, sums);
  squares_[index] = sums_->take();
  return *squares_[index];
}

void GradientDrain::drain_piece(UnitId unit, const Piece& piece, std::span<const float> sums) {
  const std::span<std::byte> host = host_->gradient(unit);
  const auto width = static_cast<size_t>(width_of(host_->dtype()));
  for (int64_t done = 0; done < piece.elements; done += chunks_.elements) {
    const auto host_begin = static_cast<size_t>(piece.host_begin + done);
    const auto count = static_cast<size_t>(std::min(chunks_.elements, piece.elements - done));
    const std::span<const float> values =
        sums.subspan(static_cast<size_t>(piece.flat_begin + done), count);
    const std::span<std::byte> there = host.subspan(host_begin * width, count * width);
    if (staging_.empty()) {
      sums_->add(values, {}, 0);
      copies_->to_host(there, std::as_bytes(values));
      continue;
    }
    const size_t buffer = std::exchange(next_buffer_, (next_buffer_ + 1) % staging_.size());
    const std::span<std::byte> kept = staging_[buffer].first(count * width);
    sums_->add(values, {reinterpret_cast<uint16_t*>(kept.data()), count},
               static_cast<int32_t>(buffer));
    copies_->to_host(there, kept);
    sums_->copied(static_cast<int32_t>(buffer));
  }
  sums_->end_piece();
}

std::vector<double> GradientDrain::finish() {
  std::vector<double> result;
  for (std::optional<double>& squares : squares_) {
    result.push_back(squares.value_or(0.0));
    squares.reset();
  }
  return result;
}

GradNorm norm_of(std::span<const double> unit_squares) {
  GradNorm result;
  double sum = 0.0;
  for (size_t i = 0; i < unit_squares.size(); ++i) {
    sum += unit_squares[i];
    if (!std::isfinite(unit_squares[i]) && !result.first_non_finite) {
      result.first_non_finite = UnitId(static_cast<int32_t>(i));
    }
  }
  result.norm = std::sqrt(sum);
  result.finite = !result.first_non_finite.has_value();
  return result;
}

GradientReducer::GradientReducer(const RankGroups& groups, const std::vector<FlatLayout>* layouts,
                                 DType wire, std::span<std::byte> scratch)
    : groups_(groups), layouts_(layouts), wire_(wire), scratch_(scratch) {
  LONGSHORE_CHECK(static_cast<Bytes>(scratch.size()) >=
                  planned_scratch_bytes(*layouts, groups.topology, wire));
}

Bytes GradientReducer::planned_scratch_bytes(const std::vector<FlatLayout>& layouts,
                                             const ShardTopology& topology, DType wire) {
  Bytes most = 0;
  for (const FlatLayout& layout : layouts) {
    const int64_t whole = layout.trainable_elements();
    most =
        std::max({most, reduce_scratch_bytes(whole, wire, topology.shard_ranks),
                  reduce_scratch_bytes(whole / topology.shard_ranks, wire, topology.replicas())});
  }
  return most;
}

void GradientReducer::reduce(UnitId unit, std::span<float> sums) {
  if (sums.empty()) return;
  const FlatLayout& layout = layouts_->at(static_cast<size_t>(unit.value));
  Communicator::FloatSegments whole, own;
  for (Segment segment : kTrainedSegments) {
    const ElementRange range = layout.segment(segment);
    const ElementRange part = layout.shard(segment, groups_.shard());
    if (range.elements == 0) continue;
    whole.push_back(
        sums.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.elements)));
    own.push_back(
        sums.subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.elements)));
  }
  const OpLabel label{"gradients", unit};
  if (groups_.shards != nullptr) {
    groups_.shards->reduce_scatter(std::move(whole), wire_, scratch_, label).wait();
  }
  if (groups_.replicas != nullptr) {
    groups_.replicas->all_reduce(std::move(own), wire_, scratch_, label).wait();
  }
}

}  // namespace longshore
