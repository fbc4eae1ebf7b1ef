#include "shard/whole_matrices.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <utility>

#include "base/bytes.h"
#include "base/errors.h"

namespace longshore {
namespace {

// Returns whether each edge between shards of `shard` elements that falls inside the parameter at
// `begin` is one of its cuts.
bool edges_are_cuts(const UncutParameter& parameter, int64_t begin, int64_t shard) {
  const int64_t end = begin + parameter.elements;
  for (int64_t edge = (begin / shard + 1) * shard; edge < end; edge += shard) {
    if (!std::ranges::binary_search(parameter.cuts, edge - begin)) return false;
  }
  return true;
}

// Returns the parameter's first place from `from` on. Places repeat with each shard, so those up to
// the second edge are all. Without one it has a matrix, or matrices in the middle, that do not fill
// whole shards.
std::optional<int64_t> first_place(const UncutParameter& parameter, int64_t from, int64_t shard) {
  if (edges_are_cuts(parameter, from, shard)) return from;
  const int64_t next = (from / shard + 1) * shard;
  for (const int64_t edge : {next, next + shard}) {
    for (const int64_t cut : std::views::reverse(parameter.cuts)) {
      const int64_t begin = edge - cut;
      if (begin > from && edges_are_cuts(parameter, begin, shard)) return begin;
    }
    if (edges_are_cuts(parameter, edge, shard)) return edge;
  }
  return std::nullopt;
}

std::optional<std::vector<int64_t>> places_in(std::span<const UncutParameter> parameters,
                                              int64_t shard, int32_t ranks, int64_t alignment) {
  std::vector<int64_t> begins;
  int64_t cursor = 0;
  for (const UncutParameter& parameter : parameters) {
    const std::optional<int64_t> begin = first_place(parameter, cursor, shard);
    if (!begin || *begin + parameter.elements > shard * ranks) return std::nullopt;
    begins.push_back(*begin);
    cursor = align_up(*begin + parameter.elements, alignment);
  }
  return begins;
}

// Returns the parts that cannot be cut, of all parameters in order, with padding.
std::vector<int64_t> parts_of(std::span<const UncutParameter> parameters, int64_t alignment) {
  std::vector<int64_t> parts;
  for (const UncutParameter& parameter : parameters) {
    int64_t begin = 0;
    for (const int64_t cut : parameter.cuts) {
      parts.push_back(cut - begin);
      begin = cut;
    }
    parts.push_back(align_up(parameter.elements - begin, alignment));
  }
  return parts;
}

// Returns the smallest sum of consecutive parts that exceeds `size`; that of all, if none does.
int64_t next_run(std::span<const int64_t> parts, int64_t size) {
  int64_t all = 0, sum = 0;
  for (const int64_t part : parts) all += part;
  int64_t least = all;
  size_t first = 0;
  for (const int64_t part : parts) {
    sum += part;
    while (sum - parts[first] > size) sum -= parts[first++];
    if (sum > size) least = std::min(least, sum);
  }
  return least;
}

}  // namespace

UncutParameter uncut_parameter(const ParamSpec& parameter, int64_t alignment) {
  UncutParameter uncut{.elements = parameter.elements(), .cuts = {}};
  int64_t end = 0;
  for (const MatrixPlace& place : parameter.matrix_places()) {
    if (place.first >= end && place.first > 0 && place.first % alignment == 0) {
      uncut.cuts.push_back(place.first);
    }
    end = std::max(end, place.end());
  }
  LONGSHORE_CHECK(end == uncut.elements) << parameter.name << " has elements in no matrix";
  return uncut;
}

MatrixShards share_matrices(std::span<const UncutParameter> parameters, int32_t ranks,
                            int64_t alignment) {
  if (parameters.empty()) return {};
  const std::vector<int64_t> parts = parts_of(parameters, alignment);
  int64_t sum = 0;
  for (const int64_t part : parts) sum += part;
  int64_t shard = std::max(align_up((sum + ranks - 1) / ranks, alignment), std::ranges::max(parts));
  while (true) {
    std::optional<std::vector<int64_t>> begins = places_in(parameters, shard, ranks, alignment);
    if (begins) return {.begins = std::move(*begins), .shard_elements = shard};
    const int64_t next = next_run(parts, shard);
    LONGSHORE_CHECK(next > shard) << next;
    shard = next;
  }
}

}  // namespace longshore
