#include "trainer/model/model_source.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/texts.h"
#include "model/families/families.h"
#include "model/families/random_init.h"
#include "model/models/decoder_model.h"
#include "model/models/grouped_model.h"
#include "model/models/packed_model.h"
#include "model/parameters/adapter.h"
#include "model/parameters/adapter_values.h"
#include "model/parameters/model_spec.h"
#include "model/parameters/unit_cut.h"
#include "offload/plan/plan_from_config.h"
#include "trainer/model/trained_text.h"

namespace longshore {
namespace {

UnitPolicy unit_policy(const UnitsChoice& units) {
  UnitPolicy policy{.kind = UnitPolicy::Kind::kBlock,
                    .classes = units.classes,
                    .min_parameters = units.min_parameters,
                    .groups = units.groups};
  switch (units.kind) {
    case UnitsChoice::Kind::kBlock:
    case UnitsChoice::Kind::kAuto:  // until `choose`
      break;
    case UnitsChoice::Kind::kHalf:
      policy.kind = UnitPolicy::Kind::kHalf;
      break;
    case UnitsChoice::Kind::kPiece:
      policy.kind = UnitPolicy::Kind::kPiece;
      break;
    case UnitsChoice::Kind::kRows:
      policy.kind = UnitPolicy::Kind::kPiece;
      policy.rows = units.rows;
      break;
    case UnitsChoice::Kind::kClasses:
      policy.kind = UnitPolicy::Kind::kClasses;
      break;
    case UnitsChoice::Kind::kMinParameters:
      policy.kind = UnitPolicy::Kind::kMinParameters;
      break;
    case UnitsChoice::Kind::kGroups:
      policy.kind = UnitPolicy::Kind::kGroups;
      break;
  }
  return policy;
}

// Returns the scaling of the adapters' products, and of those with another one.
std::string scalings_of(const AdapterSpec& adapter) {
  std::string text;
  for (const auto& [place, size] : adapter.targets) {
    if (text.empty()) {
      text = formatted("%.17g", size.scaling);
    } else if (size.scaling != adapter.targets.begin()->second.scaling) {
      text += formatted(" %lld %d %.17g", static_cast<long long>(place.first),
                        static_cast<int>(place.second), size.scaling);
    }
  }
  return text;
}

// Copies the run's router settings to the model's architecture.
void ask_routers(const RunConfig& config, ArchSpec& arch) {
  const std::optional<double>& balance = config.train.router_aux_loss;
  if (arch.moe.experts == 0) {
    const char* const none = " is for models with experts, and this one has none: ";
    if (balance.value_or(0.0) > 0.0) {
      throw ConfigError("train.router_aux_loss" + (none + arch.origin));
    }
    if (config.log.router) throw ConfigError("log.router" + (none + arch.origin));
  }
  if (config.train.router_correction_rate > 0.0 && !arch.moe.correction) {
    throw ConfigError(
        "train.router_correction_rate is for models whose routers have corrections "
        "(e_score_correction_bias), and this one has none: " +
        arch.origin);
  }
  if (arch.moe.experts == 0) return;
  arch.moe.correction_rate = config.train.router_correction_rate;
  if (balance) arch.moe.balance = *balance;
  arch.moe.watched = config.log.router;
}

// A decoder divided into units by one policy, with its frozen matrices packed for `packing`.
struct CutModel {
  CutModel(const ArchSpec& arch, const ModelSpec& whole, const UnitPolicy& policy,
           const std::optional<Packing>& packing)
      : decoder(arch, whole, cut_for(policy, arch)) {
    if (packing) packs.emplace(&decoder, *packing);
    const Model& cut = packs ? static_cast<const Model&>(*packs) : decoder;
    grouped.emplace(&cut, group_units(cut.spec(), unit_classes(arch, cut.spec()), policy));
  }
  DecoderModel decoder;
  std::optional<PackedModel> packs;
  std::optional<GroupedModel> grouped;
};

// Gives the model a row for each id of the tokens that the run adds. A larger table stays as it is:
// published ones are often padded, and the rows behind the tokenizer's last id are then used.
void add_rows(const AddedTokens& tokens, ArchSpec& arch) {
  if (tokens.id_limit() <= arch.vocabulary) return;
  if (arch.layer_input > 0) {
    throw ConfigError(tokens.text() + ": " + arch.origin +
                      " has a second table of tokens (vocab_size_per_layer_input), to which no "
                      "rows are added; leave the tokens out, or add them with transformers first");
  }
  arch.added_tokens = tokens.id_limit() - arch.vocabulary;
  arch.vocabulary = tokens.id_limit();
}

// Returns the architecture of the model's files with the run's tokens and its settings of routers
// and losses.
ArchSpec asked_arch(const RunConfig& config, const ModelDirectory& directory,
                    const AddedTokens& tokens) {
  ArchSpec arch = read_arch_spec(directory.config(), directory.path_of("config.json"));
  add_rows(tokens, arch);
  ask_routers(config, arch);
  if (config.train.loss == LossKind::kDistill) arch.distill = config.distill;
  return arch;
}

}  // namespace

ModelSource::ModelSource(const RunConfig& config, ModelDirectory::Weights weights)
    : base_(config, weights),
      tokens_(config, base_.directory().path()),
      arch_(asked_arch(config, base_.directory(), tokens_)),
      packing_(config, arch_, base_),
      seed_(static_cast<uint64_t>(config.run.seed)) {
  if (config.adapter.on()) adapter_.emplace(config, arch_);
  whole_ = base_.whole_spec(arch_);
  if (adapter_) {
    adapter_->choose_trained(arch_, whole_, base_.directory());
  } else {
    freeze_parameters(whole_, config.train.freeze, "train.freeze");
  }
  keep_matrices_whole(whole_, *update_rule(config));
  validate_model_spec(whole_);
  if (whole_.trainable_elements() == 0) {
    throw ConfigError("train.freeze: every parameter is frozen, so there is nothing to train");
  }
  base_.open_weights(arch_, whole_);
  if (adapter_ && base_.weights() != nullptr) adapter_->sum_reads();
  packing_.open(config, whole_, base_);
  model_ = in_units(config.fsdp.units);
  if (config.tokenizer.path != "auto") {
    tokenizer_files_ = read_tokenizer_files(config.tokenizer.path);
  }
  for (const auto& [name, text] : tokens_.files()) tokenizer_files_[name] = text;
}

std::string ModelSource::fingerprint() const {
  std::string text = directory().fingerprint();
  if (!tokens_.text().empty()) text += " with " + tokens_.text();
  if (!has_adapter()) return tokens_.text().empty() ? text : hash_text(hash64(text));
  // A format of the model's own files changes no value.
  const std::optional<Packing>& packing = packing_.format();
  const std::string format =
      packing && !packing->only ? " in " + std::string(name_of(packing->format)) : "";
  return hash_text(hash64(text + " adapters scaled by " + scalings_of(arch_.adapter) + format));
}

std::string ModelSource::weight_files() const {
  std::string text = base_.identity();
  if (given_adapter() != nullptr) text += given_adapter()->file().identity() + "\n";
  return text;
}

std::vector<StoredTensor> ModelSource::stored_tensors() const {
  std::vector<StoredTensor> tensors;
  const WeightLoader* const weights = base_.weights();
  if (weights == nullptr) return tensors;
  for (const ParamSpec& parameter : whole_.whole_parameters()) {
    if (parameter.adapter) continue;
    const ModelDirectory::TensorRef ref = weights->at(parameter.name);
    const auto add = [&](const SafetensorsFile& file, const TensorInfo& tensor) {
      tensors.push_back({tensor.name, &file, &tensor, parameter.frozen});
    };
    if (ref.packed == nullptr) {
      add(ref.file->file, *ref.tensor);
    } else {
      for (const PackedTensor::Part& part : ref.packed->parts()) add(*part.file, *part.tensor);
    }
  }
  if (const AdapterDirectory* const given = given_adapter()) {
    for (const TensorInfo& tensor : given->file().tensors()) {
      tensors.push_back({"adapter: " + tensor.name, &given->file(), &tensor, false});
    }
  }
  std::ranges::sort(tensors, {}, &StoredTensor::name);
  return tensors;
}

std::shared_ptr<const Model> ModelSource::in_units(const UnitsChoice& units) const {
  const auto made =
      std::make_shared<const CutModel>(arch_, whole_, unit_policy(units), packing_.format());
  return {made, &*made->grouped};
}

std::map<std::string, DType> ModelSource::frozen_dtypes() const {
  std::map<std::string, DType> dtypes;
  const WeightLoader* const weights = base_.weights();
  if (weights == nullptr) return dtypes;
  for (const ParamSpec& parameter : whole_.whole_parameters()) {
    if (!parameter.frozen || packing_.has(parameter.name)) continue;
    dtypes.emplace(parameter.name, weights->stored_dtype(parameter.name));
  }
  return dtypes;
}

void ModelSource::read_initial(const std::string& name, int64_t begin, std::span<float> out) const {
  if (adapter_ && adapter_->has(name)) return adapter_->read(parameter(name), begin, out);
  if (const std::string weight = weight_of_magnitude(name); !weight.empty()) {
    read_norms(weight, begin, out);
    return;
  }
  if (packing_.has(name)) return packing_.read_values(name, begin, out);
  if (base_.random() || (has_adapter() && parameter(name).adapter)) {
    fill_random(name, parameter(name).init, seed_, begin, out);
    return;
  }
  LONGSHORE_CHECK(base_.weights() != nullptr) << directory().path() << " has no weights to read";
  base_.weights()->read_parameter(name, begin, out);
}

// A new adapter's product is 0, so that these are norms of the model's own weights.
void ModelSource::read_norms(const std::string& weight, int64_t begin, std::span<float> out) const {
  const ParamSpec& spec = parameter(weight);
  // A family with transposed matrices has a head like any other.
  const std::vector<ParamSpec>& last = whole_.units.back().parameters;
  const bool head = std::ranges::find(last, weight, &ParamSpec::name) != last.end();
  const bool transposed = spec.looked_up || (arch_.transposed_weights && !head);
  const AdaptedMatrix matrix(/*scaling=*/1.0, transposed, spec.shape.at(0), spec.shape.at(1));
  const std::vector<double> norms = matrix.norms(
      [&](int64_t first, std::span<float> values) { read_initial(weight, first, values); }, begin,
      static_cast<int64_t>(out.size()));
  std::ranges::transform(norms, out.begin(), [](double norm) { return static_cast<float>(norm); });
}

const ParamSpec& ModelSource::parameter(const std::string& name) const {
  for (const UnitSpec& unit : whole_.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (parameter.name == name) return parameter;
    }
  }
  throw CheckFailure("no parameter " + name);
}

}  // namespace longshore
