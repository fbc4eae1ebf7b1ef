#include "model/parameters/unit_cut.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"
#include "model/parameters/block_carry.h"
#include "model/parameters/model_spec.h"
#include "shard/flat_layout.h"

namespace longshore {
namespace {

using Groups = std::vector<std::vector<UnitId>>;

std::string quoted_list(const std::vector<std::string>& names) {
  constexpr size_t kMaxShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxShown); ++i) {
    text += (text.empty() ? "\"" : ", \"") + names[i] + "\"";
  }
  return names.size() > kMaxShown ? text + ", ..." : text;
}

std::string unknown(const std::string& what, const std::string& name,
                    const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(name, known);
  return "fsdp.units: the model has no " + what + " \"" + name + "\"" +
         (nearest.empty() ? "" : ", did you mean \"" + nearest + "\"?") + "; it has " +
         quoted_list(known);
}

std::vector<std::string> without_repeats(const std::vector<std::string>& names) {
  std::vector<std::string> distinct;
  for (const std::string& name : names) {
    if (std::ranges::find(distinct, name) == distinct.end()) distinct.push_back(name);
  }
  return distinct;
}

Groups by_classes(const ModelSpec& model, const std::vector<std::string>& classes,
                  const std::vector<std::string>& wanted) {
  const std::vector<std::string> known = without_repeats(classes);
  for (const std::string& name : wanted) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw ConfigError(unknown("class", name, known));
  }
  Groups groups;
  bool open = false;
  for (size_t i = 0; i < model.units.size(); ++i) {
    const bool alone = std::ranges::find(wanted, classes.at(i)) != wanted.end();
    if (alone || !open) groups.emplace_back();
    groups.back().push_back(model.units[i].id);
    open = !alone;
  }
  return groups;
}

Groups by_size(const ModelSpec& model, int64_t min_parameters) {
  Groups groups;
  int64_t parameters = min_parameters;  // parameters of the last group
  for (const UnitSpec& unit : model.units) {
    if (parameters >= min_parameters) {
      groups.emplace_back();
      parameters = 0;
    }
    groups.back().push_back(unit.id);
    for (const ParamSpec& parameter : unit.parameters) parameters += parameter.elements();
  }
  return groups;
}

Groups by_hand(const ModelSpec& model, const std::vector<std::vector<std::string>>& wanted) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : model.units) names.push_back(unit.name);
  std::map<int32_t, size_t> group_of;
  for (size_t group = 0; group < wanted.size(); ++group) {
    std::vector<int32_t> units;
    for (const std::string& name : wanted[group]) {
      const auto found = std::ranges::find(names, name);
      if (found == names.end()) throw ConfigError(unknown("unit", name, names));
      units.push_back(static_cast<int32_t>(found - names.begin()));
      if (!group_of.emplace(units.back(), group).second) {
        throw ConfigError("fsdp.units: unit \"" + name + "\" is named twice");
      }
    }
    std::ranges::sort(units);
    for (size_t i = 1; i < units.size(); ++i) {
      if (units[i] == units[i - 1] + 1) continue;
      throw ConfigError("fsdp.units: a group must hold units that follow each other; between \"" +
                        names[static_cast<size_t>(units[i - 1])] + "\" and \"" +
                        names[static_cast<size_t>(units[i])] + "\" others are missing");
    }
  }
  Groups groups;
  for (size_t i = 0; i < model.units.size(); ++i) {
    const auto mine = group_of.find(static_cast<int32_t>(i));
    const auto before = group_of.find(static_cast<int32_t>(i) - 1);
    const bool joined =
        mine != group_of.end() && before != group_of.end() && mine->second == before->second;
    if (!joined) groups.emplace_back();
    groups.back().push_back(model.units[i].id);
  }
  return groups;
}

using Kind = DecoderPart::Kind;

constexpr const char* kAttentionSuffix = ".attention";
constexpr const char* kMlpSuffix = ".mlp";
constexpr const char* kExpertsSuffix = ".experts";

std::string block_name(int64_t layer) {
  return "block." + std::to_string(layer);
}

int64_t elements_of(const std::vector<ModuleParameter>& parameters) {
  int64_t sum = 0;
  for (const ModuleParameter& parameter : parameters) sum += parameter.spec.elements();
  return sum;
}

// Returns the most experts of a group: as large as attention, and at least an eighth of a layer's,
// because every group keeps its input. 0 means all in one.
int64_t experts_of_group(const ArchSpec& arch, int64_t layer) {
  if (arch.moe.beside) return 0;  // a norm reads the sum of all experts
  const std::vector<ModuleParameter> all = block_parameters(arch, {}, layer, BlockPart::kMlp);
  const int64_t one = arch.expert_elements();
  const int64_t attention = elements_of(block_parameters(arch, {}, layer, BlockPart::kAttention));
  int64_t count = std::max({attention / one, arch.moe.experts / 8, int64_t{1}});
  // Groups start at block boundaries of the quantised moments.
  for (const ModuleParameter& parameter : all) {
    if (!parameter.spec.stacked) continue;
    const int64_t row = parameter.spec.elements() / arch.moe.experts;
    count = align_up(count, kBlockElements / std::gcd(kBlockElements, row));
  }
  return count < arch.moe.experts ? count : 0;
}

// Returns rows per piece of a table so that none exceeds the largest part of a block; 0: do not cut
// it.
int64_t rows_like_parts(const ArchSpec& arch, const UnitCut& cut, int64_t table_rows,
                        int64_t width) {
  int64_t most = 0;
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    const int64_t mlp = elements_of(block_parameters(arch, {}, layer, BlockPart::kMlp));
    most = std::max({most, elements_of(block_parameters(arch, {}, layer, BlockPart::kAttention)),
                     cut.grouped.contains(layer) ? mlp * cut.experts / arch.moe.experts : mlp});
  }
  const int64_t pieces = (table_rows * width + most - 1) / most;
  return pieces < 2 ? 0 : (table_rows + pieces - 1) / pieces;
}

// The most pieces of a table. Each is a unit, so the sizes of an untrusted config.json would
// otherwise decide how much memory a plan takes.
constexpr int64_t kMostPieces = 1024;

// Returns the rows of a piece of a table as the policy wants them; 0: do not cut it.
int64_t wanted_rows(const UnitPolicy& policy, const ArchSpec& arch, const UnitCut& cut,
                    int64_t table_rows, int64_t width) {
  const int64_t least = (table_rows + kMostPieces - 1) / kMostPieces;
  if (policy.rows == 0) {
    const int64_t like_parts = rows_like_parts(arch, cut, table_rows, width);
    return like_parts == 0 ? 0 : std::max(like_parts, least);
  }
  if (policy.rows >= least) return policy.rows;
  throw ConfigError("fsdp.units: pieces of " + std::to_string(policy.rows) +
                    " rows cut a table of " + std::to_string(table_rows) + " rows into more than " +
                    std::to_string(kMostPieces) + " units; set rows to at least " +
                    std::to_string(least));
}

// Pieces start at block boundaries of the moments; otherwise bits would depend on the cut.
int64_t aligned_rows(int64_t rows, int64_t table_rows, int64_t width) {
  const int64_t aligned = align_up(rows, kBlockElements / std::gcd(kBlockElements, width));
  return aligned < table_rows ? aligned : 0;
}

void add_pieces(std::vector<DecoderPart>& parts, Kind whole, Kind piece, int64_t vocabulary,
                int64_t rows) {
  if (rows == 0) {
    parts.push_back({.kind = whole});
    return;
  }
  for (int64_t first = 0; first < vocabulary; first += rows) {
    parts.push_back(
        {.kind = piece, .rows = {first, std::min(rows, vocabulary - first), vocabulary}});
  }
}

// Returns the whole unit that the part belongs to; `blocks` is the number of the first block's.
const UnitSpec& unit_of(const ModelSpec& whole, const DecoderPart& part, int64_t blocks) {
  switch (part.kind) {
    case Kind::kEmbedding:
    case Kind::kEmbeddingPiece:
      return whole.units.front();
    case Kind::kHead:
    case Kind::kHeadPiece:
      return whole.units.back();
    case Kind::kInputTable:
      return whole.units.at(1);
    case Kind::kInputs:
      return whole.units.at(2);
    default:
      return whole.units.at(static_cast<size_t>(part.layer + blocks));
  }
}

void take_half(const ArchSpec& arch, const DecoderPart& part, UnitSpec& unit) {
  const auto border = unit.parameters.begin() +
                      std::ssize(block_parameters(arch, {}, part.layer, BlockPart::kAttention));
  if (part.kind == Kind::kAttention) {
    unit.parameters.erase(border, unit.parameters.end());
    unit.name += kAttentionSuffix;
    unit.results = block_results(arch, part.layer, BlockPart::kAttention);
    unit.carry_out = block_carry(arch, part.layer, BlockPart::kAttention);
  } else {
    unit.parameters.erase(unit.parameters.begin(), border);
    unit.results = block_results(arch, part.layer, BlockPart::kMlp);
    unit.name += part.kind == Kind::kMlp ? kMlpSuffix : kExpertsSuffix;
    unit.carry_out = block_carry(arch, part.layer, BlockPart::kMlp);
  }
}

// `unit` has the parameters of norm, router and all experts.
void take_group(const ArchSpec& arch, const DecoderPart& part, size_t number, UnitSpec& unit) {
  if (part.rows.begins() && part.rows.ends()) return;
  std::vector<ModuleParameter> all = block_parameters(arch, {}, part.layer, BlockPart::kMlp);
  LONGSHORE_CHECK(all.size() == unit.parameters.size()) << unit.name;
  for (size_t i = 0; i < all.size(); ++i) all[i].spec = std::move(unit.parameters[i]);
  unit.parameters.clear();
  for (ModuleParameter& parameter : group_parameters(all, part.rows)) {
    unit.parameters.push_back(std::move(parameter.spec));
  }
  unit.name += "." + std::to_string(number);
  if (part.rows.ends()) return;
  const auto passes = [&part](int32_t tensor) {
    return part.rows.begins() ? std::nullopt : std::optional(tensor);
  };
  // The matrix behind the experts needs their sum in its backward.
  const bool summed = arch.moe.latent == 0 || part.rows.first + 2 * part.rows.count < part.rows.all;
  const int64_t width = arch.experts_hidden();
  unit.carry_out = {
      {.elements_per_position = width, .wide = true, .running = summed},
      {.elements_per_position = 2 * arch.moe.top_k, .wide = true, .passes = passes(1)},
      {.elements_per_position = arch.hidden, .passes = passes(2)},
      {.elements_per_position = width, .wide_gradient = true, .passes = passes(3)}};
}

void take_embedding_piece(const TableRows& rows, size_t number, UnitSpec& unit) {
  unit.parameters.front() = piece_of(unit.parameters.front(), rows);
  if (!rows.ends()) {
    unit.parameters.resize(1);  // learned positions are added last
    unit.carry_out.front().running = true;
  }
  unit.name += "." + std::to_string(number);
}

void take_input_piece(const TableRows& rows, size_t number, UnitSpec& unit) {
  if (rows.begins() && rows.ends()) return;
  unit.parameters.front() = piece_of(unit.parameters.front(), rows);
  unit.name += "." + std::to_string(number);
}

// The carry between pieces: log-sum-exp and target score so far (or head_sums()), and x. Backward
// reads no target score except that of the last piece, which computes the loss.
std::vector<CarryTensorSpec> head_carry(const TableRows& rows, const ArchSpec& arch) {
  const bool to_last = rows.first + 2 * rows.count >= rows.all;
  const HeadSums sums = head_sums(arch);
  return {{.elements_per_position = sums.logs, .wide = true},
          {.elements_per_position = sums.scores, .wide = true, .running = !to_last},
          {.elements_per_position = arch.hidden,
           .wide_gradient = true,
           .passes = rows.begins() ? std::nullopt : std::optional<int32_t>(2)}};
}

void take_head_piece(const TableRows& rows, size_t number, UnitSpec& unit) {
  const bool tied = !unit.tied.empty();
  if (tied) {
    unit.tied = {{UnitId(static_cast<int32_t>(number)), 0}};
  } else {
    unit.parameters.back() = piece_of(unit.parameters.back(), rows);
  }
  // Only the first piece keeps the norm.
  const int64_t norm = std::ssize(unit.parameters) - (tied ? 0 : 1);
  if (!rows.begins())
    unit.parameters.erase(unit.parameters.begin(), unit.parameters.begin() + norm);
  unit.name += "." + std::to_string(number);
}

}  // namespace

std::vector<std::vector<UnitId>> group_units(const ModelSpec& model,
                                             const std::vector<std::string>& classes,
                                             const UnitPolicy& policy) {
  switch (policy.kind) {
    case UnitPolicy::Kind::kBlock:
    case UnitPolicy::Kind::kHalf:
    case UnitPolicy::Kind::kPiece:
      return by_size(model, 0);
    case UnitPolicy::Kind::kClasses:
      return by_classes(model, classes, policy.classes);
    case UnitPolicy::Kind::kMinParameters:
      return by_size(model, policy.min_parameters);
    case UnitPolicy::Kind::kGroups:
      return by_hand(model, policy.groups);
  }
  return {};
}

namespace {

// Returns a group's carry out. Tensors that pass through all members still pass. A group of several
// recomputes its members' inputs, so it needs the values of everything it reads.
std::vector<CarryTensorSpec> merged_carry(const ModelSpec& model,
                                          const std::vector<UnitId>& members,
                                          bool next_is_one_unit) {
  std::vector<CarryTensorSpec> carry = model.unit(members.back()).carry_out;
  for (CarryTensorSpec& tensor : carry) {
    for (size_t i = members.size() - 1; i-- > 0 && tensor.passes;) {
      tensor.passes = model.unit(members[i]).carry_out[static_cast<size_t>(*tensor.passes)].passes;
    }
    tensor.running = tensor.running && next_is_one_unit;
  }
  return carry;
}

}  // namespace

ModelSpec merge_units(const ModelSpec& model, const std::vector<std::vector<UnitId>>& groups) {
  std::map<ParamRef, ParamRef> places;  // new reference of each owned parameter
  ModelSpec merged;
  for (size_t group = 0; group < groups.size(); ++group) {
    const std::vector<UnitId>& members = groups[group];
    UnitSpec unit;
    unit.id = UnitId(static_cast<int32_t>(merged.units.size()));
    unit.name = model.unit(members.front()).name;
    if (members.size() > 1) unit.name += ".." + model.unit(members.back()).name;
    // A group of several runs its members forward again.
    unit.backward_reads_parameters =
        members.size() > 1 || model.unit(members.front()).backward_reads_parameters;
    for (UnitId member : members) {
      const UnitSpec& from = model.unit(member);
      // The last group runs forward in backward alone.
      if (group + 1 < groups.size()) {
        unit.results.insert(unit.results.end(), from.results.begin(), from.results.end());
      }
      for (size_t i = 0; i < from.parameters.size(); ++i) {
        places[{member, static_cast<int32_t>(i)}] = {unit.id,
                                                     static_cast<int32_t>(unit.parameters.size())};
        unit.parameters.push_back(from.parameters[i]);
      }
    }
    for (UnitId member : members) {
      for (ParamRef ref : model.unit(member).tied) {
        const ParamRef place = places.at(ref);
        const bool own = place.unit == unit.id;
        const bool known = std::ranges::find(unit.tied, place) != unit.tied.end();
        // The head multiplies by the table that its own unit looks up.
        if (own) unit.parameters[static_cast<size_t>(place.index)].looked_up = false;
        if (!own && !known) unit.tied.push_back(place);
      }
    }
    unit.carry_out =
        merged_carry(model, members, group + 1 < groups.size() && groups[group + 1].size() == 1);
    merged.units.push_back(std::move(unit));
  }
  validate_model_spec(merged);
  return merged;
}

ParamSpec piece_of(ParamSpec whole, const TableRows& rows) {
  whole.shape.front() = rows.count;
  whole.first_row = rows.first;
  whole.whole_rows = rows.all;
  check_whole_matrices(whole);
  return whole;
}

UnitCut cut_for(const UnitPolicy& policy, const ArchSpec& arch) {
  UnitCut cut;
  std::set<std::string> named;
  for (const std::vector<std::string>& group : policy.groups) {
    named.insert(group.begin(), group.end());
  }
  const bool all =
      policy.kind == UnitPolicy::Kind::kHalf || policy.kind == UnitPolicy::Kind::kPiece;
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    const LayerSpec& spec = arch.layers[static_cast<size_t>(layer)];
    const bool one_part = !spec.has_mixer || !spec.has_mlp;
    if (one_part && !spec.sparse) continue;  // it cannot be cut
    const std::string name = block_name(layer);
    const std::string group = name + kExpertsSuffix + ".";
    const auto first = named.lower_bound(group);
    const bool groups = first != named.end() && first->starts_with(group);
    const bool by_hand = groups || named.contains(name + kAttentionSuffix) ||
                         named.contains(name + kMlpSuffix) || named.contains(name + kExpertsSuffix);
    if ((by_hand || all) && !one_part) cut.halves.insert(layer);
    const bool wanted = groups || policy.kind == UnitPolicy::Kind::kPiece;
    if (!wanted || !spec.sparse) continue;
    cut.experts = experts_of_group(arch, layer);
    if (cut.experts == 0) continue;
    cut.halves.insert(layer);
    cut.grouped.insert(layer);
  }
  if (policy.kind == UnitPolicy::Kind::kPiece) {
    const auto rows_of = [&](int64_t rows, int64_t width) {
      const int64_t wanted = wanted_rows(policy, arch, cut, rows, width);
      return wanted == 0 ? 0 : aligned_rows(wanted, rows, width);
    };
    cut.embedding_rows = cut.head_rows = rows_of(arch.vocabulary, arch.hidden);
    if (arch.layer_input > 0) {
      cut.input_rows = rows_of(arch.layer_input_rows, arch.layer_inputs_width());
    }
    // All pieces of a table would share one of the two matrices of its adapter.
    if (arch.adapter.adapts(kNoLayer, Module::kTokens)) cut.embedding_rows = 0;
    if (arch.adapter.adapts(kNoLayer, Module::kHead)) cut.head_rows = 0;
  }
  return cut;
}

std::vector<DecoderPart> decoder_parts(const ArchSpec& arch, const UnitCut& cut) {
  std::vector<DecoderPart> parts;
  add_pieces(parts, Kind::kEmbedding, Kind::kEmbeddingPiece, arch.vocabulary, cut.embedding_rows);
  if (arch.layer_input > 0) {
    add_pieces(parts, Kind::kInputTable, Kind::kInputTable, arch.layer_input_rows,
               cut.input_rows > 0 ? cut.input_rows : arch.layer_input_rows);
    parts.push_back({.kind = Kind::kInputs});
  }
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    if (!cut.halves.contains(layer)) {
      parts.push_back({Kind::kBlock, layer});
      continue;
    }
    const LayerSpec& spec = arch.layers[static_cast<size_t>(layer)];
    if (spec.has_mixer) parts.push_back({Kind::kAttention, layer});
    if (spec.sparse) {
      const int64_t all = arch.moe.experts;
      const int64_t most = cut.grouped.contains(layer) ? cut.experts : all;
      for (int64_t first = 0; first < all; first += most) {
        parts.push_back({Kind::kExperts, layer, {first, std::min(most, all - first), all}});
      }
      continue;
    }
    parts.push_back({Kind::kMlp, layer});
  }
  add_pieces(parts, Kind::kHead, Kind::kHeadPiece, arch.vocabulary, cut.head_rows);
  return parts;
}

ModelSpec cut_units(const ArchSpec& arch, const ModelSpec& whole, const UnitCut& cut) {
  LONGSHORE_CHECK(static_cast<int64_t>(whole.units.size()) ==
                  arch.units_before_blocks() + arch.layer_count() + 1);
  const bool tied = !whole.units.back().tied.empty();
  LONGSHORE_CHECK(!tied || cut.embedding_rows == cut.head_rows);
  ModelSpec model;
  size_t pieces = 0;  // pieces of this table so far
  for (const DecoderPart& part : decoder_parts(arch, cut)) {
    UnitSpec unit = unit_of(whole, part, arch.units_before_blocks());
    unit.id = UnitId(static_cast<int32_t>(model.units.size()));
    if (part.rows.begins()) pieces = 0;
    switch (part.kind) {
      case Kind::kAttention:
      case Kind::kMlp:
        take_half(arch, part, unit);
        break;
      case Kind::kExperts:
        take_half(arch, part, unit);
        take_group(arch, part, pieces++, unit);
        break;
      case Kind::kEmbeddingPiece:
        take_embedding_piece(part.rows, pieces++, unit);
        break;
      case Kind::kInputTable:
        take_input_piece(part.rows, pieces++, unit);
        break;
      case Kind::kHeadPiece:
        take_head_piece(part.rows, pieces++, unit);
        if (!part.rows.ends()) unit.carry_out = head_carry(part.rows, arch);
        break;
      default:
        break;
    }
    model.units.push_back(std::move(unit));
  }
  validate_model_spec(model);
  return model;
}

std::vector<ModuleParameter> group_parameters(const std::vector<ModuleParameter>& all,
                                              const TableRows& experts) {
  std::vector<ModuleParameter> group;
  for (ModuleParameter parameter : all) {
    const bool of_all =
        parameter.module == Module::kExpertsGateUp || parameter.module == Module::kExpertsDown;
    const bool of_one = parameter.expert >= 0;
    const bool of_group =
        parameter.module == Module::kExpertsOut ? experts.ends() : experts.begins();
    const bool mine = of_all || (of_one ? parameter.expert >= experts.first &&
                                              parameter.expert < experts.first + experts.count
                                        : of_group);
    if (!mine) continue;
    if (of_all && experts.count < experts.all) parameter.spec = piece_of(parameter.spec, experts);
    group.push_back(std::move(parameter));
  }
  return group;
}

}  // namespace longshore
