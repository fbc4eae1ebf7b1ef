#include "offload/staging/grad_drain.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "offload/staging/gradient_kernels.h"

namespace longshore {
namespace {

using internal::kNormBlockElements;

// Elements that are cast before a copy starts: long enough for a copy to run at full speed.
constexpr int64_t kChunkElements = 256 * kNormBlockElements;
// Norm blocks of one task.
constexpr int64_t kTaskBlocks = 16;

int64_t trainable_shard_elements(const FlatLayout& layout) {
  return layout.trainable_elements() / layout.shard_factor();
}

int64_t staging_elements(const std::vector<FlatLayout>& layouts) {
  int64_t largest = 0;
  for (const FlatLayout& layout : layouts) {
    largest = std::max(largest, trainable_shard_elements(layout));
  }
  return std::min(largest, kChunkElements);
}

}  // namespace

Bytes GradDrain::planned_staging_bytes(const std::vector<FlatLayout>& layouts,
                                       const StateOptions& options) {
  return options.drain == DType::kF32 ? 0 : staging_elements(layouts) * width_of(options.drain);
}

GradDrain::GradDrain(ShardStore* store, CopyEngine* copies, const std::vector<FlatLayout>& layouts,
                     Rank rank, std::span<std::byte> staging, WorkerPool* pool)
    : store_(store),
      copies_(copies),
      pool_(pool),
      staging_(staging),
      squares_(layouts.size()),
      block_squares_(kChunkElements / kNormBlockElements) {
  LONGSHORE_CHECK(static_cast<Bytes>(staging.size()) >=
                  planned_staging_bytes(layouts, store->options()));
  for (const FlatLayout& layout : layouts) {
    std::vector<Piece> pieces;
    for (const ShardPiece& piece : layout.pieces(rank)) {
      if (piece.segment == Segment::kFrozen) continue;
      const int64_t before = piece.segment == Segment::kFullMoments
                                 ? layout.shard_elements(Segment::kQuantisedMoments)
                                 : 0;
      pieces.push_back({layout.shard(piece.segment, rank).begin + piece.shard_begin,
                        before + piece.shard_begin, piece.elements});
    }
    pieces_.push_back(std::move(pieces));
    flat_elements_.push_back(layout.trainable_elements());
  }
}

double GradDrain::drain(UnitId unit, std::span<const float> sums) {
  const auto index = static_cast<size_t>(unit.value);
  LONGSHORE_CHECK(index < pieces_.size()) << "unit " << unit;
  LONGSHORE_CHECK(!squares_[index].has_value()) << "unit " << unit << " was drained in this step";
  LONGSHORE_CHECK(static_cast<int64_t>(sums.size()) == flat_elements_[index])
      << "unit " << unit << ": " << sums.size() << " of " << flat_elements_[index];
  double squares = 0.0;
  for (const Piece& piece : pieces_[index]) squares += drain_piece(unit, piece, sums);
  squares_[index] = squares;
  return squares;
}

double GradDrain::drain_piece(UnitId unit, const Piece& piece, std::span<const float> sums) {
  const std::span<std::byte> home = store_->gradient(unit);
  const auto width = static_cast<size_t>(width_of(store_->options().drain));
  double sum = 0.0;
  for (int64_t done = 0; done < piece.elements; done += kChunkElements) {
    const auto home_begin = static_cast<size_t>(piece.home_begin + done);
    const auto count = static_cast<size_t>(std::min(kChunkElements, piece.elements - done));
    const std::span<const float> values =
        sums.subspan(static_cast<size_t>(piece.flat_begin + done), count);
    std::span<const std::byte> kept = std::as_bytes(values);
    if (width == sizeof(float)) {
      sum += sum_blocks(values, {});
    } else {
      kept = staging_.first(count * width);
      sum += sum_blocks(values, {reinterpret_cast<uint16_t*>(staging_.data()), count});
    }
    copies_->to_host(home.subspan(home_begin * width, count * width), kept);
  }
  return sum;
}

// Empty `bf16`: the values are kept as they are.
double GradDrain::sum_blocks(std::span<const float> values, std::span<uint16_t> bf16) {
  const auto elements = static_cast<int64_t>(values.size());
  const int64_t blocks = (elements + kNormBlockElements - 1) / kNormBlockElements;
  pool_->for_each_block((blocks + kTaskBlocks - 1) / kTaskBlocks, [&](int64_t task) {
    for (int64_t block = task * kTaskBlocks; block < std::min((task + 1) * kTaskBlocks, blocks);
         ++block) {
      const auto begin = static_cast<size_t>(block * kNormBlockElements);
      const size_t count = std::min(static_cast<size_t>(kNormBlockElements), values.size() - begin);
      const std::span<const float> part = values.subspan(begin, count);
      block_squares_[static_cast<size_t>(block)] =
          bf16.empty() ? internal::sum_squares(simd_, part)
                       : internal::cast_and_sum_squares(simd_, part, bf16.subspan(begin, count));
    }
  });
  double sum = 0.0;
  for (int64_t block = 0; block < blocks; ++block) {
    sum += block_squares_[static_cast<size_t>(block)];
  }
  return sum;
}

std::vector<double> GradDrain::finish() {
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

}  // namespace longshore
