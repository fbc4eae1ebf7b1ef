#include "trainer/use/reference_logps.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"

namespace longshore {
namespace {

constexpr Bytes kTokenBytes = 4;  // of the prepared data, for the progress
constexpr Bytes kMostBytes = Bytes{64} << 30;
constexpr const char* kHelp =
    "; restore the file, or start over with checkpoint.resume = \"never\": the values cannot be "
    "computed from weights that were trained since";

// Returns the sequences of micro-batch `number`.
std::vector<int64_t> sequences_of(const SequenceTable& table, int64_t number, int64_t micro_batch) {
  const int64_t first = number * micro_batch;
  std::vector<int64_t> sequences(
      static_cast<size_t>(std::clamp<int64_t>(table.sequence_count() - first, 0, micro_batch)));
  std::iota(sequences.begin(), sequences.end(), first);
  return sequences;
}

References read_file(const std::string& path, const std::string& key, int64_t documents) {
  if (!std::filesystem::exists(std::filesystem::symlink_status(path))) {
    throw CheckpointError(path +
                          " is missing: it has the log-probabilities of the model that this run "
                          "started from, which train.loss needs" +
                          kHelp);
  }
  const std::string text = [&path] {
    try {
      return read_own_file(path, kMostBytes);
    } catch (const IoError& error) {  // a link or a pipe is none of the run's files
      throw CheckpointError(error.what() + std::string(kHelp));
    }
  }();
  const size_t line = text.find('\n');
  if (line == std::string::npos) throw CheckpointError(path + " is damaged" + kHelp);
  const Json head = Json::parse(text.substr(0, line), nullptr, /*allow_exceptions=*/false);
  const std::string_view content = std::string_view(text).substr(line + 1);
  const auto member = [&](const char* name) {
    return head.is_object() && head.contains(name) ? head[name] : Json();
  };
  if (member("version") != 1 || member("xxh3") != hash_text(hash64(content))) {
    throw CheckpointError(path + " is damaged" + kHelp);
  }
  if (member("key") != key || member("documents") != documents ||
      content.size() != static_cast<size_t>(documents) * sizeof(double)) {
    throw CheckpointError(path + " belongs to another model, other data or another compute type (" +
                          member("key").dump() + ", now \"" + key + "\")" + kHelp);
  }
  References kept{.values = std::vector<double>(static_cast<size_t>(documents)),
                  .model = member_text(head, "model")};
  if (!kept.values.empty()) std::memcpy(kept.values.data(), content.data(), content.size());
  return kept;
}

// Computes the log-probabilities of the documents of a set that has `data`'s sequences, and calls
// `use` with each.
void for_each_logp(Engine& engine, const SequenceData& data, const Dataset& dataset,
                   const Objective& objective, int64_t micro_batch,
                   const std::function<void(Bytes)>& between,
                   const std::function<void(int64_t, double)>& use) {
  const RankGroups& groups = engine.groups();
  const int64_t ranks = groups.topology.ranks;
  const RankShare share{groups.rank, groups.topology.ranks};
  const int64_t at_once = engine.plan().step.micro_batches;
  const int64_t micro_batches = (data.table.sequence_count() + micro_batch - 1) / micro_batch;
  // All ranks run equal rounds; a rank without a micro-batch joins the collectives.
  for (int64_t first = 0; first < micro_batches; first += at_once * ranks) {
    std::vector<Batch> batches;
    Bytes done = 0;
    for (int64_t i = 0; i < at_once * ranks && first + i < micro_batches; ++i) {
      const std::vector<int64_t> sequences = sequences_of(data.table, first + i, micro_batch);
      for (const int64_t sequence : sequences) {
        for (const int64_t document : data.table.documents_of(sequence)) {
          done += dataset.document_tokens(document) * kTokenBytes;
        }
      }
      if (share.has(i)) batches.push_back(make_token_batch(dataset, data.table, sequences));
    }
    set_references(batches, objective);
    engine.evaluate(engine.batches().load(batches, objective.loss));
    const auto& logps = engine.document_logps();
    for (size_t b = 0; b < batches.size(); ++b) {
      for (size_t d = 0; d < logps[b].size(); ++d) use(batches[b].documents()[d], logps[b][d]);
    }
    between(done);
  }
}

}  // namespace

int64_t reference_count(const SequenceData& data) {
  return data.dataset->document_count() * (data.mismatched == nullptr ? 1 : 2);
}

std::vector<double> compute_reference(Engine& engine, const SequenceData& data,
                                      const std::shared_ptr<const Loss>& loss, int64_t micro_batch,
                                      const StopCheck& stop) {
  const int64_t documents = data.dataset->document_count();
  std::vector<double> values(static_cast<size_t>(reference_count(data)), 0.0);
  const Objective objective{.loss = loss, .references = std::vector<double>(values.size(), 0.0)};
  std::vector<const Dataset*> sets = {data.dataset.get()};
  if (data.mismatched != nullptr) sets.push_back(data.mismatched.get());
  int64_t tokens = 0;
  for (const Dataset* set : sets) {
    for (int64_t d = 0; d < documents; ++d) tokens += set->document_tokens(d);
  }
  Progress progress("reference log-probabilities", tokens * kTokenBytes);
  for (size_t s = 0; s < sets.size(); ++s) {
    stop();
    for_each_logp(
        engine, data, *sets[s], objective, micro_batch,
        [&](Bytes done) {
          stop();
          progress.add(done);
        },
        [&](int64_t document, double logp) {
          values[s * static_cast<size_t>(documents) + static_cast<size_t>(document)] = logp;
        });
  }
  // HOST WAIT: every rank needs the values of the answers that later steps give it.
  if (engine.groups().all != nullptr) {
    engine.groups()
        .all->all_reduce(values, {"the reference's log-probabilities", std::nullopt})
        .wait();
  }
  return values;
}

std::string reference_key(const RunConfig& config, const std::string& model_fingerprint,
                          const SequenceData& data) {
  const std::string others =
      data.mismatched == nullptr ? "" : ", mismatched " + hash_text(data.mismatched->fingerprint());
  return "model " + model_fingerprint + ", data " + hash_text(data.dataset->fingerprint()) +
         others + ", seed " + std::to_string(config.run.seed) + ", compute " +
         std::string(name_of(config.precision.compute));
}

void write_reference(const std::string& path, const std::string& key,
                     const References& references) {
  const std::span<const std::byte> bytes = bytes_of(std::span(references.values));
  const Json head = {{"kind", "reference log-probabilities"},
                     {"version", 1},
                     {"key", key},
                     {"model", references.model},
                     {"documents", references.values.size()},
                     {"xxh3", hash_text(hash64(bytes))}};
  std::string text = head.dump() + "\n";
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  write_file_durably(path, text);
}

References read_reference(const std::string& path, const std::string& key, int64_t documents,
                          const RunRanks& ranks) {
  References kept{.values = std::vector<double>(static_cast<size_t>(documents), 0.0)};
  std::string problem;
  if (ranks.first()) {
    try {
      kept = read_file(path, key, documents);
    } catch (const CheckpointError& error) {
      problem = error.what();
    }
  }
  problem = ranks.world().exchange("the reference's log-probabilities", problem).front();
  if (!problem.empty()) throw CheckpointError(problem);
  if (Communicator* const all = ranks.groups().all; all != nullptr) {
    all->all_reduce(kept.values, {"the reference's log-probabilities", std::nullopt}).wait();
  }
  kept.model = ranks.world().exchange("the reference model", kept.model).front();
  return kept;
}

}  // namespace longshore
