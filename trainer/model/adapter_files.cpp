#include "trainer/model/adapter_files.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/name_pattern.h"
#include "base/texts.h"
#include "hf/hub_cache.h"
#include "model/families/families.h"
#include "model/parameters/adapter.h"
#include "model/parameters/model_spec.h"
#include "trainer/model/keys_beside_path.h"

namespace longshore {
namespace {

bool holds_single_experts(const AdapterDirectory& adapter) {
  return std::ranges::any_of(adapter.names(), [](const std::string& name) {
    constexpr std::string_view kExperts = ".experts.";
    const size_t at = name.find(kExperts);
    return at != name.npos && name.find_first_of("0123456789", at) == at + kExperts.size();
  });
}

}  // namespace

std::string published_name(std::string_view family, const std::string& parameter) {
  const NameTable& names = name_table(family);
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

void take_adapter_kind(RunConfig& config) {
  AdapterSection& adapter = config.adapter;
  if (adapter.is_new() || adapter.kind != AdapterSection::Kind::kNone) return;
  const bool dora = AdapterDirectory::open(adapter.path).settings().dora;
  adapter.kind = dora ? AdapterSection::Kind::kDora : AdapterSection::Kind::kLora;
}

AdapterFiles::AdapterFiles(const RunConfig& config, ArchSpec& arch) : family_(arch.family) {
  const AdapterSection& section = config.adapter;
  const bool dora = section.kind == AdapterSection::Kind::kDora;
  path_ = section.path;
  any_base_ = section.any_base;
  if (section.is_new()) {
    settings_ = {.rank = section.r,
                 .alpha = section.alpha,
                 .rslora = section.rslora,
                 .dora = dora,
                 .dropout = section.dropout,
                 .targets = section.targets,
                 .ranks = section.rank_pattern,
                 .alphas = section.alpha_pattern,
                 .trained = section.train,
                 .bias = section.bias};
  } else {
    given_.emplace(AdapterDirectory::open(section.path));
    settings_ = given_->settings();
    const std::filesystem::path weights(given_->file().path());
    made_over_ = read_base_identity(weights.parent_path().string());
    if (section.kind != AdapterSection::Kind::kNone && settings_.dora != dora) {
      throw ConfigError(std::string(settings_.dora ? "adapter.kind = \"lora\", but "
                                                   : "adapter.kind = \"dora\", but ") +
                        path_ + (settings_.dora ? " is" : " is not") +
                        " an adapter of DoRA (use_dora of its adapter_config.json); set " +
                        (settings_.dora ? "\"dora\"" : "\"lora\""));
    }
  }
  settings_.transposed = arch.transposed_weights;
  settings_.base = lasting_model_name(config.model.path);
  std::vector<std::string> targets = settings_.targets;
  std::ranges::copy(settings_.parameters, std::back_inserter(targets));
  arch.adapter = choose_adapters(
      arch,
      {.rank = settings_.rank,
       .alpha = settings_.alpha,
       .ranks = settings_.ranks,
       .alphas = settings_.alphas,
       .spare_patterns = given_.has_value(),
       .gate_up_doubled = given_ ? holds_single_experts(*given_) : doubles_gate_up(arch),
       .rslora = settings_.rslora,
       .dora = settings_.dora,
       .dropout = settings_.dropout,
       .targets = std::move(targets),
       .excluded = section.exclude,
       .layers = section.layers},
      given_ ? path_ + ": target_modules" : "adapter.targets");
  replaced_note_ = compare_beside_path({section, settings_, arch});
}

void AdapterFiles::choose_trained(const ArchSpec& arch, ModelSpec& whole,
                                  const ModelDirectory& base) {
  check_tied_targets(arch, whole, given_ ? path_ + ": target_modules" : "adapter.targets");
  freeze_base(whole, settings_.trained, given_ ? path_ + ": modules_to_save" : "adapter.train",
              settings_.bias);
  adapted_ = adapted_modules(whole);
  check_trained_twice(arch, whole);
  check_biases(arch, whole);
  if (given_) {
    check_tensors(arch, whole);
    check_tied_copy(whole, base);
  } else {
    name_as_peft(arch, whole);
  }
}

// PEFT has the bias of an adapted module inside of its wrapper.
std::string AdapterFiles::file_name(const std::string& parameter) const {
  const std::string bias = ".bias", published = published_name(family_, parameter);
  const bool wrapped = settings_.bias != AdapterBias::kNone && parameter.ends_with(bias) &&
                       adapted_.contains(module_of(parameter));
  return wrapped ? module_of(published) + ".base_layer" + bias : published;
}

// PEFT leaves out the adapter of a matrix that is trained in full, and a merged model takes adapted
// matrices from the model below.
void AdapterFiles::check_trained_twice(const ArchSpec& arch, const ModelSpec& whole) const {
  const std::map<std::string, AdaptedPart> adapted = adapted_matrices(arch, whole);
  for (const ParamSpec& parameter : whole.whole_parameters()) {
    if (parameter.frozen || !adapted.contains(parameter.name)) continue;
    throw ConfigError((given_ ? path_ + ": modules_to_save: " : std::string("adapter.train: ")) +
                      module_of(parameter.name) + " has an adapter too; " +
                      (given_ ? "merge the adapter into its model with PEFT's merge_and_unload"
                              : "leave it out, or name it in adapter.exclude"));
  }
}

void AdapterFiles::check_biases(const ArchSpec& arch, const ModelSpec& whole) const {
  if (settings_.bias == AdapterBias::kNone) return;
  const std::string where = given_ ? path_ + ": bias" : "adapter.bias";
  if (!target_parameters(arch).empty()) {
    throw ConfigError(where +
                      ": biases cannot be trained beside adapters of experts and routers; " +
                      (given_ ? "merge the adapter into its model with PEFT's merge_and_unload"
                              : "set it to \"none\", or name other targets"));
  }
  const auto is_trained_bias = [](const ParamSpec& parameter) {
    return !parameter.frozen && !parameter.adapter && parameter.name.ends_with(".bias");
  };
  if (given_ || std::ranges::any_of(whole.whole_parameters(), is_trained_bias)) return;
  throw ConfigError(where + ": " + arch.origin + " has no biases" +
                    (settings_.bias == AdapterBias::kAdapted ? " in the adapted modules" : "") +
                    "; set it to \"none\"");
}

// PEFT knows neither this program's words for targets nor its globs, and its file sorts patterns,
// of which the first that matches counts.
void AdapterFiles::name_as_peft(const ArchSpec& arch, const ModelSpec& whole) {
  settings_.targets = target_names(arch);
  settings_.parameters = target_parameters(arch);
  settings_.ranks =
      number_patterns(arch, static_cast<double>(settings_.rank),
                      [](const AdapterSpec::Size& size) { return static_cast<double>(size.rank); });
  settings_.alphas = number_patterns(arch, settings_.alpha,
                                     [](const AdapterSpec::Size& size) { return size.alpha; });
  settings_.trained.clear();
  for (const std::string& module : trained_modules(whole)) {
    settings_.trained.push_back(published_name(family_, module));
  }
  settings_.tied = trained_tied_table(whole) != nullptr;
}

// PEFT unties an embedding that it trains unless ensure_weight_tying says otherwise, and its file
// then has one of the two.
void AdapterFiles::check_tied_copy(const ModelSpec& whole, const ModelDirectory& base) const {
  const ParamSpec* const table = trained_tied_table(whole);
  if (table == nullptr) return;
  const std::string start = path_ +
                            ": modules_to_save names the embedding, which is also "
                            "the head of " +
                            base.path() + ", ";
  if (!settings_.tied) {
    throw ConfigError(start +
                      "without ensure_weight_tying: PEFT trained it as the embedding "
                      "alone; merge the adapter into its model with PEFT's merge_and_unload");
  }
  const std::string copy(kTiedHeadName);
  if (!given_->has(copy)) return;
  std::vector<float> head(static_cast<size_t>(table->elements())), embedding(head);
  const bool alike = given_->shape(copy) == table->shape;
  if (alike) {
    given_->read(copy, 0, head);
    given_->read(published_name(family_, table->name), 0, embedding);
  }
  if (!alike || head != embedding) {
    throw DataError(start + "but its file holds another " + copy);
  }
}

DataError AdapterFiles::other_shape(const std::string& name, const std::vector<int64_t>& needed,
                                    bool table) const {
  const std::vector<int64_t>& found = given_->shape(name);
  const bool other_rows = table && found.size() == 2 && found.back() == needed.back();
  return DataError(path_ + ": the tensor of " + name + " has shape " + format_shape(found) +
                   ", and this model needs " + format_shape(needed) +
                   "; it belongs to another model" +
                   (other_rows ? ", or to a run that added tokens: give those of that run with "
                                 "tokenizer.add_tokens and tokenizer.add_special_tokens"
                               : ""));
}

// An adapter that fits only in part would be trained as another adapter than the one given.
void AdapterFiles::check_tensors(const ArchSpec& arch, const ModelSpec& whole) {
  find_older_tensors(arch, whole);
  check_older_patterns();
  std::set<std::string> unused;
  for (const std::string& name : given_->names()) unused.insert(name);
  for (const ParamSpec& parameter : whole.whole_parameters()) {
    if (parameter.frozen) continue;
    const std::string name = file_name(parameter.name);
    if (older_.contains(parameter.name)) {
      check_older_tensors(parameter, unused);
      continue;
    }
    if (!given_->has(name)) {
      throw DataError(path_ + ": has no tensor for " + name +
                      ", which adapter_config.json says is trained" +
                      (unused.empty() ? "" : "; it has one for " + printable(*unused.begin())));
    }
    if (given_->shape(name) != peft_shape(parameter)) {
      throw other_shape(name, peft_shape(parameter), !parameter.adapter && parameter.matrices.none);
    }
    unused.erase(name);
  }
  if (trained_tied_table(whole) != nullptr) unused.erase(std::string(kTiedHeadName));
  if (!unused.empty()) {
    throw DataError(path_ + ": the tensor of " + printable(*unused.begin()) +
                    " is not among what adapter_config.json says is trained");
  }
  if (!older_.empty()) name_as_peft(arch, whole);
}

void AdapterFiles::find_older_tensors(const ArchSpec& arch, const ModelSpec& whole) {
  for (const auto& [weight, part] : adapted_matrices(arch, whole)) {
    if (part.lookup) continue;
    const AdapterNames all = adapter_names(part.module), own = adapter_names(module_of(weight));
    for (const auto& [name, older] : {std::pair(all.a, own.a), std::pair(all.b, own.b)}) {
      const std::string published = published_name(family_, older);
      if (given_->has(published_name(family_, name)) || !given_->has(published)) continue;
      older_[name].push_back({published, part});
    }
  }
}

// Patterns for names of transformers 4 do not match the newer ones, so that the matrices would
// silently get the usual alpha.
void AdapterFiles::check_older_patterns() const {
  if (older_.empty()) return;
  const NumbersByPattern ranks(settings_.ranks), alphas(settings_.alphas);
  for (const auto& [parameter, tensors] : older_) {
    for (const OlderTensor& tensor : tensors) {
      const std::string module = tensor.name.substr(0, tensor.name.find(".lora_"));
      const bool has_rank = ranks.number_of(module).has_value();
      if (!has_rank && !alphas.number_of(module)) continue;
      throw ConfigError(path_ + ": " + (has_rank ? "rank_pattern" : "alpha_pattern") + " matches " +
                        printable(module) +
                        ", which has no adapter of its own since transformers 5; merge the adapter "
                        "into its model with the versions of PEFT and transformers that made it");
    }
  }
}

// Every expert has A and B of each matrix, with the rank of other modules.
void AdapterFiles::check_older_tensors(const ParamSpec& parameter,
                                       std::set<std::string>& unused) const {
  const std::vector<OlderTensor>& tensors = older_.at(parameter.name);
  const std::vector<int64_t>& shape = parameter.shape;
  int64_t elements = 0;
  for (const OlderTensor& tensor : tensors) {
    const std::vector<int64_t>& found = given_->shape(tensor.name);
    const bool is_a = tensor.name.ends_with(".lora_A.weight");
    const int64_t rank = settings_.rank;
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
    throw DataError(path_ + ": has no tensors for all experts of " +
                    published_name(family_, parameter.name));
  }
}

// B of gate and up, which had adapters of their own, is block-diagonal, as PEFT makes it.
std::vector<float> AdapterFiles::read_whole(const ParamSpec& parameter) const {
  std::vector<float> values(static_cast<size_t>(parameter.elements()));
  const auto found = older_.find(parameter.name);
  if (found == older_.end()) {
    given_->read(file_name(parameter.name), 0, values);
    return peft_reorders(parameter) ? from_peft(parameter, values) : values;
  }
  for (const auto& [name, part] : found->second) {
    std::vector<float> own(static_cast<size_t>(given_->shape(name).at(0)) *
                           static_cast<size_t>(given_->shape(name).at(1)));
    given_->read(name, 0, own);
    if (!parameter.stacked) return own;
    const int64_t rank = settings_.rank, width = parameter.shape.at(2);
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

bool AdapterFiles::has(const std::string& name) const {
  return given_ && (given_->has(file_name(name)) || older_.contains(name));
}

void AdapterFiles::read(const ParamSpec& parameter, int64_t begin, std::span<float> out) const {
  if (!older_.contains(parameter.name) && !peft_reorders(parameter)) {
    given_->read(file_name(parameter.name), begin, out);
    return;
  }
  const std::vector<float> values = read_whole(parameter);
  const auto first = values.begin() + begin;
  std::copy(first, first + std::ssize(out), out.begin());
}

}  // namespace longshore
