#include "trainer/model/model_source.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/number_formats.h"
#include "base/texts.h"
#include "hf/hub_cache.h"
#include "model/families/families.h"
#include "model/families/random_init.h"
#include "model/models/decoder_model.h"
#include "model/models/grouped_model.h"
#include "model/parameters/adapter.h"
#include "model/parameters/adapter_values.h"
#include "model/parameters/model_spec.h"
#include "model/parameters/unit_cut.h"
#include "trainer/model/keys_beside_path.h"
#include "trainer/model/trained_text.h"

namespace longshore {
namespace {

// Returns the loader's rules for tensors to skip: the family's rules and the copies of other
// tensors.
std::vector<SkipRule> skip_rules(const ArchSpec& arch, const ModelDirectory& directory,
                                 const std::map<std::string, std::string>& copies) {
  std::vector<SkipRule> rules;
  for (const auto& [name, parameter] : copies) {
    rules.push_back({.prefix = name, .suffix = "", .reason = "a copy of " + parameter});
  }
  for (const ModelDirectory::TensorRef& tensor : directory.tensors()) {
    if (!is_skipped_tensor(arch, tensor.tensor->name)) continue;
    rules.push_back({.prefix = tensor.tensor->name, .suffix = "", .reason = "a buffer"});
  }
  return rules;
}

std::vector<FileTensor> file_tensors(const ModelDirectory& directory) {
  std::vector<FileTensor> tensors;
  for (const ModelDirectory::TensorRef& tensor : directory.tensors()) {
    tensors.push_back({tensor.tensor->name, tensor.tensor->shape});
  }
  return tensors;
}

// Makes the model's spec. A tensor that it needs may be one that the index lists and no file has.
ModelSpec spec_for(const ArchSpec& arch, const std::vector<FileTensor>& files,
                   const ModelDirectory& directory) {
  try {
    return make_model_spec(arch, files);
  } catch (const DataError& error) {
    if (directory.absent_note().empty()) throw;
    throw DataError(std::string(error.what()) + "\n" + directory.absent_note());
  }
}

// For a tied model whose files also store the embedding's bytes as a head, as some programs do,
// returns that head's name; otherwise "".
std::string stored_copy_of_head(const ArchSpec& arch, const ModelSpec& spec,
                                const ModelDirectory& directory) {
  if (!arch.tied_by_config || !spec.units.back().tied.empty()) return {};
  const std::string& head = spec.units.back().parameters.back().name;
  const auto stored = directory.find(head);
  const auto embedding = directory.find(spec.units.front().parameters.front().name);
  return stored && embedding && directory.same_bytes(stored, embedding) ? head : std::string();
}

// ConfigError if a tied model's files contain a different head: transformers would ignore it, so
// the user must decide whether to train it.
void check_tied_head(const ArchSpec& arch, const ModelSpec& spec, const ModelDirectory& directory) {
  if (!arch.tied_by_config || !spec.units.back().tied.empty()) return;
  if (directory.tensors().empty()) return;
  throw ConfigError(arch.origin +
                    ": says that the head is tied to the embedding, but the weights "
                    "hold a head of their own; set tie_word_embeddings to false to train it, or "
                    "remove it from the weights");
}

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

bool holds_single_experts(const AdapterDirectory& adapter) {
  return std::ranges::any_of(adapter.names(), [](const std::string& name) {
    constexpr std::string_view kExperts = ".experts.";
    const size_t at = name.find(kExperts);
    return at != name.npos && name.find_first_of("0123456789", at) == at + kExperts.size();
  });
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

// Throws for models whose matrices cannot be packed.
void check_packable(const ArchSpec& arch, const ModelDirectory& directory, PackedFormat format) {
  if (!arch.transposed_weights) return;
  throw ConfigError("adapter.base = \"" + std::string(name_of(format)) + "\": " + directory.path() +
                    " stores its matrices transposed, and those are not packed; set "
                    "adapter.base = \"published\"");
}

}  // namespace

ModelSource::ModelSource(const RunConfig& config, ModelDirectory::Weights weights)
    : compute_(config.precision.compute),
      random_(config.model.init == ModelSection::Init::kRandom),
      seed_(static_cast<uint64_t>(config.run.seed)) {
  directory_ = std::make_unique<ModelDirectory>(ModelDirectory::open(
      config.model.path, random_ ? ModelDirectory::Weights::kOptional : weights, mxfp4_families()));
  arch_ = read_arch_spec(directory_->config(), directory_->path_of("config.json"));
  ask_routers(config, arch_);
  if (config.train.loss == LossKind::kDistill) arch_.distill = config.distill;
  choose_packing(config);
  if (config.adapter.on()) read_adapter(config);
  std::vector<FileTensor> files = file_tensors(*directory_);
  arch_ = spelled_as(std::move(arch_), files);
  whole_ = spec_for(arch_, files, *directory_);
  if (const std::string head = stored_copy_of_head(arch_, whole_, *directory_); !head.empty()) {
    copies_[head] = whole_.units.front().parameters.front().name;
    std::erase_if(files, [&head](const FileTensor& file) { return file.name == head; });
    whole_ = spec_for(arch_, files, *directory_);
  }
  check_tied_head(arch_, whole_, *directory_);
  if (has_adapter()) {
    check_tied_targets(arch_, whole_,
                       adapter_ ? adapter_path_ + ": target_modules" : "adapter.targets");
    freeze_base(whole_, adapter_settings_.trained,
                adapter_ ? adapter_path_ + ": modules_to_save" : "adapter.train");
    if (adapter_) {
      check_adapter_tensors();
      check_tied_copy();
    } else {
      name_as_peft();
    }
  } else {
    freeze_parameters(whole_, config.train.freeze, "train.freeze");
  }
  validate_model_spec(whole_);
  if (whole_.trainable_elements() == 0) {
    throw ConfigError("train.freeze: every parameter is frozen, so there is nothing to train");
  }
  if (!random_ && !directory_->files().empty()) {
    loader_.emplace(*directory_, whole_, skip_rules(arch_, *directory_, copies_));
    directory_->sum_reads();
    if (adapter_) adapter_->sum_reads();
    const bool in_files = config.offload.parameters == OffloadSection::Parameters::kFiles;
    if (in_files || packing_) files_.emplace(*directory_, &*loader_);
    if (packing_) {
      packed_.emplace(pack_model_spec(whole_, *packing_), compute_, &*files_, &*loader_);
    }
  }
  model_ = in_units(config.fsdp.units);
  if (config.tokenizer.path != "auto") {
    tokenizer_files_ = read_tokenizer_files(config.tokenizer.path);
  }
}

// A base in fp8 or MXFP4 stays so wherever packed matrices can be; elsewhere it is read as the bf16
// values that it stands for.
void ModelSource::choose_packing(const RunConfig& config) {
  using Base = AdapterSection::Base;
  using Parameters = OffloadSection::Parameters;
  if (config.adapter.packs()) {
    const bool nf4 = config.adapter.base == Base::kNf4;
    packing_ =
        Packing{.format = nf4 ? PackedFormat::kNf4 : PackedFormat::kFp8, .compute = compute_};
    check_packable(arch_, *directory_, packing_->format);
    return;
  }
  const bool stays = config.adapter.on() && !random_ && directory_->quantised() &&
                     config.offload.parameters != Parameters::kNvme &&
                     config.offload.optimizer != OffloadSection::Optimizer::kNvme &&
                     config.fsdp.gather != GatherMode::kHost;
  if (!stays) return;
  std::set<std::string> stored;
  for (const ModelDirectory::TensorRef& ref : directory_->tensors()) {
    if (ref.packed != nullptr) stored.insert(ref.tensor->name);
  }
  const bool fp8 = directory_->quantisation() == Quantisation::kFp8;
  packing_ =
      Packing{.format = fp8 ? PackedFormat::kFp8 : PackedFormat::kMxfp4, .compute = compute_};
  // A plan without weights counts all that the format can hold.
  if (!stored.empty()) packing_->only = std::move(stored);
}

// Reads the settings of the run file, or of the adapter that the run starts from, and adds the
// adapters to the architecture.
void ModelSource::read_adapter(const RunConfig& config) {
  const AdapterSection& section = config.adapter;
  const bool dora = section.kind == AdapterSection::Kind::kDora;
  adapter_path_ = section.path;
  if (section.is_new()) {
    adapter_settings_ = {.rank = section.r,
                         .alpha = section.alpha,
                         .rslora = section.rslora,
                         .dora = dora,
                         .dropout = section.dropout,
                         .targets = section.targets,
                         .trained = section.train};
  } else {
    adapter_.emplace(AdapterDirectory::open(section.path));
    adapter_settings_ = adapter_->settings();
    if (adapter_settings_.dora != dora) {
      throw ConfigError(std::string(adapter_settings_.dora ? "adapter.kind = \"lora\", but "
                                                           : "adapter.kind = \"dora\", but ") +
                        adapter_path_ + (adapter_settings_.dora ? " is" : " is not") +
                        " an adapter of DoRA (use_dora of its adapter_config.json); set " +
                        (adapter_settings_.dora ? "\"dora\"" : "\"lora\""));
    }
  }
  adapter_settings_.transposed = arch_.transposed_weights;
  adapter_settings_.base = lasting_model_name(config.model.path);
  std::vector<std::string> targets = adapter_settings_.targets;
  std::ranges::copy(adapter_settings_.parameters, std::back_inserter(targets));
  arch_.adapter =
      choose_adapters(arch_,
                      {.rank = adapter_settings_.rank,
                       .alpha = adapter_settings_.alpha,
                       .gate_up_doubled = adapter_ ? adapter_settings_.gate_up_doubled ||
                                                         holds_single_experts(*adapter_)
                                                   : doubles_gate_up(arch_),
                       .rslora = adapter_settings_.rslora,
                       .dora = adapter_settings_.dora,
                       .dropout = adapter_settings_.dropout,
                       .targets = std::move(targets)},
                      adapter_ ? adapter_path_ + ": target_modules" : "adapter.targets");
  replaced_note_ = compare_beside_path({section, adapter_settings_, arch_});
}

// PEFT knows neither this program's words for targets nor its globs.
void ModelSource::name_as_peft() {
  adapter_settings_.targets = target_names(arch_);
  adapter_settings_.parameters = target_parameters(arch_);
  adapter_settings_.gate_up_doubled =
      arch_.adapter.gate_up_doubled &&
      std::ranges::any_of(arch_.adapter.targets, [](const auto& target) {
        return target.second == Module::kExpertsGateUp;
      });
  adapter_settings_.trained.clear();
  for (const std::string& module : trained_modules(whole_)) {
    adapter_settings_.trained.push_back(published_name(module));
  }
  adapter_settings_.tied = trained_tied_table(whole_) != nullptr;
}

// PEFT unties an embedding that it trains unless ensure_weight_tying says otherwise, and its file
// then has one of the two.
void ModelSource::check_tied_copy() const {
  const ParamSpec* const table = trained_tied_table(whole_);
  if (table == nullptr) return;
  const std::string start = adapter_path_ +
                            ": modules_to_save names the embedding, which is also "
                            "the head of " +
                            directory_->path() + ", ";
  if (!adapter_settings_.tied) {
    throw ConfigError(start +
                      "without ensure_weight_tying: PEFT trained it as the embedding "
                      "alone; merge the adapter into its model with PEFT's merge_and_unload");
  }
  const std::string copy(kTiedHeadName);
  if (!adapter_->has(copy)) return;
  std::vector<float> head(static_cast<size_t>(table->elements())), embedding(head);
  const bool alike = adapter_->shape(copy) == table->shape;
  if (alike) {
    adapter_->read(copy, 0, head);
    adapter_->read(published_name(table->name), 0, embedding);
  }
  if (!alike || head != embedding) {
    throw DataError(start + "but its file holds another " + copy);
  }
}

DataError ModelSource::other_shape(const std::string& name,
                                   const std::vector<int64_t>& needed) const {
  return DataError(adapter_path_ + ": the tensor of " + name + " has shape " +
                   format_shape(adapter_->shape(name)) + ", and this model needs " +
                   format_shape(needed) + "; it belongs to another model");
}

// An adapter that fits only in part would be trained as another adapter than the one given.
void ModelSource::check_adapter_tensors() {
  find_older_tensors();
  std::set<std::string> unused;
  for (const std::string& name : adapter_->names()) unused.insert(name);
  for (const ParamSpec& parameter : whole_.whole_parameters()) {
    if (parameter.frozen) continue;
    const std::string name = published_name(parameter.name);
    if (older_.contains(parameter.name)) {
      check_older_tensors(parameter, unused);
      continue;
    }
    if (!adapter_->has(name)) {
      throw DataError(adapter_path_ + ": has no tensor for " + name +
                      ", which adapter_config.json says is trained" +
                      (unused.empty() ? "" : "; it has one for " + printable(*unused.begin())));
    }
    if (adapter_->shape(name) != peft_shape(parameter)) {
      throw other_shape(name, peft_shape(parameter));
    }
    unused.erase(name);
  }
  if (trained_tied_table(whole_) != nullptr) unused.erase(std::string(kTiedHeadName));
  if (!unused.empty()) {
    throw DataError(adapter_path_ + ": the tensor of " + printable(*unused.begin()) +
                    " is not among what adapter_config.json says is trained");
  }
  if (!older_.empty()) name_as_peft();
}

void ModelSource::find_older_tensors() {
  for (const auto& [weight, part] : adapted_matrices(arch_, whole_)) {
    if (part.lookup) continue;
    const AdapterNames all = adapter_names(part.module), own = adapter_names(module_of(weight));
    for (const auto& [name, older] : {std::pair(all.a, own.a), std::pair(all.b, own.b)}) {
      const std::string published = published_name(older);
      if (adapter_->has(published_name(name)) || !adapter_->has(published)) continue;
      older_[name].push_back({published, part});
    }
  }
}

// Every expert has A and B of each matrix, with the rank of other modules.
void ModelSource::check_older_tensors(const ParamSpec& parameter,
                                      std::set<std::string>& unused) const {
  const std::vector<OlderTensor>& tensors = older_.at(parameter.name);
  const std::vector<int64_t>& shape = parameter.shape;
  int64_t elements = 0;
  for (const OlderTensor& tensor : tensors) {
    const std::vector<int64_t>& found = adapter_->shape(tensor.name);
    const bool is_a = tensor.name.ends_with(".lora_A.weight");
    const int64_t rank = adapter_settings_.rank;
    // Gate and up have half of the outputs and of the rank each.
    const int64_t halves = parameter.stacked && !is_a ? shape.at(2) / rank : 1;
    std::vector<int64_t> expected = shape;
    if (parameter.stacked)
      expected = {is_a ? rank : shape.at(1) / halves, is_a ? shape.at(2) : rank};
    if (found != expected) throw other_shape(tensor.name, expected);
    elements += halves * expected.at(0) * expected.at(1);
    unused.erase(tensor.name);
  }
  if (elements != parameter.elements()) {
    throw DataError(adapter_path_ + ": has no tensors for all experts of " +
                    published_name(parameter.name));
  }
}

// B of gate and up, which had adapters of their own, is block-diagonal, as PEFT makes it.
std::vector<float> ModelSource::read_adapter_tensor(const ParamSpec& parameter) const {
  std::vector<float> values(static_cast<size_t>(parameter.elements()));
  const auto found = older_.find(parameter.name);
  if (found == older_.end()) {
    adapter_->read(published_name(parameter.name), 0, values);
    return peft_reorders(parameter) ? from_peft(parameter, values) : values;
  }
  for (const auto& [name, part] : found->second) {
    std::vector<float> own(static_cast<size_t>(adapter_->shape(name).at(0)) *
                           static_cast<size_t>(adapter_->shape(name).at(1)));
    adapter_->read(name, 0, own);
    if (!parameter.stacked) return own;
    const int64_t rank = adapter_settings_.rank, width = parameter.shape.at(2);
    const int64_t second = part.first_output > 0 ? rank : 0;  // the rank of up is behind gate's
    const bool is_a = name.ends_with(".lora_A.weight");
    const int64_t columns = is_a ? width : rank;
    const int64_t row = part.expert * parameter.shape.at(1) + (is_a ? second : part.first_output);
    for (int64_t i = 0; i < std::ssize(own); ++i) {
      const int64_t place = (row + i / columns) * width + (is_a ? 0 : second) + i % columns;
      values.at(static_cast<size_t>(place)) = own[static_cast<size_t>(i)];
    }
  }
  return values;
}

std::string ModelSource::adapter_note() const {
  std::error_code ignored;
  const std::string beside = directory_->path() + "/" + std::string(kAdapterConfigName);
  if (!adapter_path_.empty()) return replaced_note_;
  if (!std::filesystem::exists(beside, ignored)) return {};
  return beside +
         ": an adapter lies beside the model's weights and is not used, although transformers "
         "with PEFT applies both; to train it set adapter.path to this directory, or remove it";
}

std::string ModelSource::published_name(const std::string& parameter) const {
  const NameTable& names = name_table(arch_.family);
  const std::string published(names.published_body());
  for (const NameTable::Prefix& prefix : names.prefixes) {
    const bool bare = prefix.body.empty() && !parameter.starts_with(published);
    if (!bare && (prefix.body.empty() || !parameter.starts_with(prefix.body))) continue;
    return published + parameter.substr(prefix.body.size());
  }
  // Older files of a wrapper have the head beside the text tower.
  const std::string_view head = names.prefixes.front().head;
  return parameter.starts_with(head) ? parameter.substr(head.size()) : parameter;
}

std::string ModelSource::fingerprint() const {
  if (!has_adapter()) return directory_->fingerprint();
  // A format of the model's own files changes no value.
  const std::string format =
      packing_ && !packing_->only ? " in " + std::string(name_of(packing_->format)) : "";
  return hash_text(hash64(directory_->fingerprint() + " adapters scaled by " +
                          formatted("%.17g", arch_.adapter.scaling) + format));
}

std::string ModelSource::weight_files() const {
  std::string text;
  if (loader_) {
    for (const auto& file : directory_->files()) text += file->file.identity() + "\n";
  }
  if (adapter_) text += adapter_->file().identity() + "\n";
  return text;
}

std::vector<StoredTensor> ModelSource::stored_tensors() const {
  std::vector<StoredTensor> tensors;
  if (!loader_) return tensors;
  for (const ParamSpec& parameter : whole_.whole_parameters()) {
    if (parameter.adapter) continue;
    const ModelDirectory::TensorRef ref = loader_->at(parameter.name);
    const auto add = [&](const SafetensorsFile& file, const TensorInfo& tensor) {
      tensors.push_back({tensor.name, &file, &tensor, parameter.frozen});
    };
    if (ref.packed == nullptr) {
      add(ref.file->file, *ref.tensor);
    } else {
      for (const PackedTensor::Part& part : ref.packed->parts()) add(*part.file, *part.tensor);
    }
  }
  if (adapter_) {
    for (const TensorInfo& tensor : adapter_->file().tensors()) {
      tensors.push_back({"adapter: " + tensor.name, &adapter_->file(), &tensor, false});
    }
  }
  std::ranges::sort(tensors, {}, &StoredTensor::name);
  return tensors;
}

std::shared_ptr<const Model> ModelSource::in_units(const UnitsChoice& units) const {
  const auto made = std::make_shared<const CutModel>(arch_, whole_, unit_policy(units), packing_);
  return {made, &*made->grouped};
}

std::map<std::string, DType> ModelSource::frozen_dtypes() const {
  std::map<std::string, DType> dtypes;
  if (!loader_) return dtypes;
  for (const ParamSpec& parameter : whole_.whole_parameters()) {
    if (!parameter.frozen || packs(parameter.name)) continue;
    dtypes.emplace(parameter.name, loader_->stored_dtype(parameter.name));
  }
  return dtypes;
}

void ModelSource::read_initial(const std::string& name, int64_t begin, std::span<float> out) const {
  if (adapter_ && (adapter_->has(published_name(name)) || older_.contains(name))) {
    const ParamSpec& spec = parameter(name);
    if (!older_.contains(name) && !peft_reorders(spec)) {
      adapter_->read(published_name(name), begin, out);
      return;
    }
    const std::vector<float> values = read_adapter_tensor(spec);
    const auto first = values.begin() + begin;
    std::copy(first, first + std::ssize(out), out.begin());
    return;
  }
  if (const std::string weight = weight_of_magnitude(name); !weight.empty()) {
    read_norms(weight, begin, out);
    return;
  }
  if (random_ || (has_adapter() && parameter(name).adapter)) {
    fill_random(name, parameter(name).init, seed_, begin, out);
    return;
  }
  if (packed_ && packed_->has(name)) {
    packed_->read_values(name, begin, out);
    if (compute_ == DType::kBF16) {
      for (float& value : out) value = bf16_to_float(float_to_bf16_nearest(value));
    }
    return;
  }
  LONGSHORE_CHECK(loader_.has_value()) << directory_->path() << " has no weights to read";
  loader_->read_parameter(name, begin, out);
}

void ModelSource::read_packed(const std::string& name, Bytes begin,
                              std::span<std::byte> out) const {
  LONGSHORE_CHECK(packs(name)) << name << " is not packed";
  packed_->read_packed(name, begin, out);
}

// A new adapter's product is 0, so that these are norms of the model's own weights.
void ModelSource::read_norms(const std::string& weight, int64_t begin, std::span<float> out) const {
  const ParamSpec& spec = parameter(weight);
  // A family with transposed matrices has a head like any other.
  const std::vector<ParamSpec>& last = whole_.units.back().parameters;
  const bool head = std::ranges::find(last, weight, &ParamSpec::name) != last.end();
  const bool transposed = spec.looked_up || (arch_.transposed_weights && !head);
  const AdaptedMatrix matrix(arch_.adapter.scaling, transposed, spec.shape.at(0), spec.shape.at(1));
  const std::vector<double> norms = matrix.norms(
      [&](int64_t first, std::span<float> values) { read_initial(weight, first, values); }, begin,
      static_cast<int64_t>(out.size()));
  std::ranges::transform(norms, out.begin(), [](double norm) { return static_cast<float>(norm); });
}

std::string ModelSource::random_weights_text() const {
  const std::string start =
      "model.init = \"random\": the weights are random ones made with run.seed";
  if (directory_->files().empty()) return start + "; " + directory_->path() + " has no weights";
  return start + ", not those in " + directory_->path() +
         "; to start from these, set model.init = \"pretrained\"";
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
