#include "trainer/use/reference_model.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/texts.h"
#include "config/toml_document.h"
#include "offload/plan/plan_from_config.h"
#include "text/tokenizer.h"
#include "trainer/data/run_prepare.h"
#include "trainer/model/frozen_check.h"
#include "trainer/run/frozen_sums.h"
#include "trainer/run/run_checkpoints.h"

namespace longshore {
namespace {

// Returns the name with each number replaced by "*", so that one glob covers all layers.
std::string glob_of_layers(const std::string& name) {
  std::string glob;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) glob += c;
    if (digit && !glob.ends_with('*')) glob += '*';
  }
  return glob;
}

// Returns globs of all parameters but the smallest of the last unit.
std::vector<std::string> globs_of_frozen(const ModelSpec& whole) {
  const std::string& trained =
      std::ranges::min_element(whole.units.back().parameters, {}, &ParamSpec::elements)->name;
  std::set<std::string> globs;
  for (const ParamSpec& parameter : whole.whole_parameters()) {
    if (parameter.name != trained) globs.insert(glob_of_layers(parameter.name));
  }
  std::erase_if(globs, [&](const std::string& glob) { return glob_matches(glob, trained); });
  return {globs.begin(), globs.end()};
}

// Throws unless ids mean the same tokens to both models. A run without a tokenizer has rows of ids.
void check_tokens(const RunConfig& run, const ModelSource& own, const ModelSource& reference) {
  if (reference.arch().vocabulary != own.arch().vocabulary) {
    throw ConfigError("its vocabulary has " + std::to_string(reference.arch().vocabulary) +
                      " tokens, that of " + own.directory().path() + " has " +
                      std::to_string(own.arch().vocabulary) +
                      "; name a model with the same vocabulary");
  }
  const std::string mine = tokenizer_directory(run, own.directory().path());
  const std::string& theirs = reference.directory().path();
  std::error_code ignored;
  if ((mine == theirs && !run.tokenizer.adds()) ||
      !std::filesystem::exists(mine + "/tokenizer.json", ignored))
    return;
  const Tokenizer a = load_run_tokenizer(run, own.directory().path()), b = Tokenizer::load(theirs);
  for (TokenId id = 0; id < std::max(a.id_limit(), b.id_limit()); ++id) {
    const auto one = a.token_of(id), other = b.token_of(id);
    if (one == other) continue;
    const auto shown = [](const std::optional<std::string>& token) {
      return token ? '"' + printable(*token, 40) + '"' : std::string("missing");
    };
    throw ConfigError("its tokenizer is another one than that of " + mine + ": token " +
                      std::to_string(id) + " is " + shown(other) + ", not " + shown(one) +
                      "; name a model with the same tokenizer");
  }
}

// Returns a text that changes when the file is written or replaced: the time of its last change of
// status cannot be set.
std::string state_of(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return path;
  return formatted("%llu %llu %lld %lld.%09ld", static_cast<unsigned long long>(status.st_dev),
                   static_cast<unsigned long long>(status.st_ino),
                   static_cast<long long>(status.st_size),
                   static_cast<long long>(status.st_ctim.tv_sec), status.st_ctim.tv_nsec);
}

// Runs `work`, and names the key in its errors.
template <typename Work>
auto named_by_key(const RunConfig& run, const Work& work) {
  const std::string start = "preference.reference = " + quote_toml(run.preference.reference) + ": ";
  try {
    return work();
  } catch (const ConfigError& error) {
    throw ConfigError(start + error.what());
  } catch (const DoesNotFitError& error) {
    throw DoesNotFitError(start + error.what());
  }
}

}  // namespace

bool has_other_reference(const RunConfig& config) {
  return traits_of(config.train.loss).reference && !config.preference.is_start();
}

RunConfig other_reference_config(const RunConfig& run, const ModelSource& own) {
  RunConfig config = run;
  if (!run.preference.is_adapter_off()) {
    config.model.path = run.preference.reference;
    config.model.init = ModelSection::Init::kPretrained;
    config.tokenizer = {};  // its own, which must be that of the run
  }
  config.adapter = {};
  config.optimizer = {};
  config.train.router_aux_loss = 0.0;
  config.train.router_correction_rate = 0.0;
  config.train.freeze = {};
  config.log.router = false;
  config.fsdp.units = {};
  config.fsdp.units.kind = UnitsChoice::Kind::kAuto;
  if (config.fsdp.gather == GatherMode::kHost) config.fsdp.gather = std::nullopt;
  config.offload.optimizer = OffloadSection::Optimizer::kHost;
  config.offload.parameters = OffloadSection::Parameters::kHost;
  if (config.offload.activations == OffloadSection::Activations::kNvme) {
    config.offload.activations = OffloadSection::Activations::kHost;
  }
  named_by_key(run, [&] {
    if (run.preference.is_adapter_off() && own.has_new_tokens()) {
      throw ConfigError(
          "the model below the adapters does not know the tokens of " + own.tokens().text() +
          "; set preference.reference = \"start\", which has the first values of their rows");
    }
    const ModelSource model(config);
    check_tokens(run, own, model);
    config.train.freeze = globs_of_frozen(model.whole());
    // The plan leaves the model in its files where host memory cannot hold it.
    const bool readable = !model.base().random() && !model.directory().quantised();
    if (readable) config.offload.parameters = OffloadSection::Parameters::kFiles;
  });
  return config;
}

OpenedRun open_other_reference(const MeasuredRun& run) {
  ReadRun read = run;
  read.config = other_reference_config(run.config, *run.source);
  return named_by_key(run.config, [&] {
    OpenedRun reference(std::move(read));
    if (run.ranks) {
      run.ranks->world().agree("the reference model", reference.source->fingerprint() + "\n");
    }
    return reference;
  });
}

MeasuredRun measured_reference(const RunConfig& run, OpenedRun opened) {
  return named_by_key(run, [&] {
    MeasuredRun reference(std::move(opened));
    reference.plan_for_inference();  // throws if it does not fit
    return reference;
  });
}

MeasuredRun other_reference(const MeasuredRun& run) {
  return measured_reference(run.config, open_other_reference(run));
}

std::string other_reference_key(const OpenedRun& reference, const SequenceData& data) {
  const ModelDirectory& model = reference.source->directory();
  std::string states;
  for (const auto& file : model.files()) states += state_of(model.path_of(file->name)) + "\n";
  return reference_key(reference.config,
                       reference.source->fingerprint() + " in " + hash_text(hash64(states)), data);
}

std::string describe_other_reference(const MeasuredRun& reference) {
  const TierPlan plan = reference.plan_for_inference();
  return "before step 1 " + reference.source->directory().path() +
         " computes the reference's log-probabilities: device " + format_bytes(plan.device.total) +
         ", host " + format_bytes(plan.host.total) +
         (plan.frozen_in_files ? " and its files" : "") +
         ", all of it free again before the run's own memory is taken";
}

ComputedReference compute_other_reference(const MeasuredRun& reference,
                                          const std::vector<const SequenceData*>& data,
                                          const StopCheck& stop) {
  const RunConfig& config = reference.config;
  const ModelSource& source = *reference.source;
  const FrozenSums sums(source.packing().frozen());
  Engine engine(
      &source.model(), reference.plan_for_inference(), update_rule(config),
      reference.ranks ? reference.ranks->groups() : RankGroups{}, RunKey{},
      {.make_tiers = make_tiers_over(source.packing().frozen() == nullptr ? nullptr : &sums)});
  World* const world = reference.ranks ? &reference.ranks->world() : nullptr;
  const std::string found = load_initial_weights(engine, source, world);
  if (!found.empty() && engine.groups().rank == Rank(0)) {
    log_warning(found + "; the reference's log-probabilities may not be finite");
  }
  ComputedReference computed;
  for (const SequenceData* const one : data) {
    computed.values.push_back(
        compute_reference(engine, *one, loss_of(config), config.train.micro_batch.value(), stop));
  }
  computed.model = read_identity(source, world).values;
  return computed;
}

}  // namespace longshore
