#include "trainer/model/model_notes.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/texts.h"
#include "hf/adapter_directory.h"
#include "model/parameters/model_spec.h"

namespace longshore {
namespace {

// The keys with which config.json counts these layers, as families and versions spell it.
constexpr const char* kCounts[] = {"num_nextn_predict_layers", "num_mtp_layers",
                                   "mtp_num_hidden_layers"};

std::string counted_by(const Json& config) {
  for (const char* key : kCounts) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_number_integer() || *found <= 0) continue;
    return key + (" = " + found->dump());
  }
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? counted_by(*text) : "";
}

// Returns a line about layers that predict further tokens: they are not trained, or config.json
// counts them and no file has them; empty if the model has none.
std::string further_tokens_note(const ModelSource& source) {
  const ModelDirectory& directory = source.directory();
  std::vector<std::string> names;
  for (const ModelDirectory::TensorRef& ref : directory.tensors()) {
    if (predicts_further_tokens(source.arch(), ref.tensor->name)) names.push_back(ref.tensor->name);
  }
  if (!names.empty() && !source.base().random()) {
    return directory.path() + ": the layers that predict further tokens (MTP, " +
           std::to_string(names.size()) + " tensors such as '" + printable(names.front()) +
           "') are not trained and stay as they are: speculative decoding with them will accept "
           "fewer tokens of the trained model";
  }
  const std::string count = counted_by(directory.config());
  if (count.empty() || directory.tensors().empty()) return {};
  return directory.path_of("config.json") + ": " + count +
         ", but no file has the layers that predict further tokens (MTP): the export has none, and "
         "programs that ask for them will not find any";
}

// Returns a sentence about an adapter beside the model's weights, which the run does not use, or
// about keys of the run file that adapter.path replaces; empty if there is neither.
std::string adapter_note(const ModelSource& source) {
  if (source.adapter() != nullptr) return source.adapter()->replaced_note();
  std::error_code ignored;
  const std::string beside = source.directory().path_of(kAdapterConfigName);
  if (!std::filesystem::exists(beside, ignored)) return {};
  return beside +
         ": an adapter lies beside the model's weights and is not used, although transformers "
         "with PEFT applies both; to train it set adapter.path to this directory, or remove it";
}

// Returns a line about the tokens that the run adds; empty if it adds none.
std::string tokens_note(const ModelSource& source) {
  const AddedTokens& tokens = source.tokens();
  if (tokens.text().empty()) return {};
  if (!source.has_new_tokens()) {
    return tokens.text() + ": the tokenizer has all of them, and their ids stay";
  }
  const int64_t rows = source.arch().vocabulary, added = source.arch().added_tokens;
  std::string line = tokens.text() + ": ";
  if (!tokens.fresh().empty()) {
    line += "new ids from " + std::to_string(tokens.fresh().front().id) + " to " +
            std::to_string(tokens.fresh().back().id) + "; ";
  }
  if (added == 0) {
    return line + "the model has rows for them (" + std::to_string(rows) +
           "), which begin with the values of its files";
  }
  return line + "the embedding and the head grow from " + std::to_string(rows - added) + " to " +
         std::to_string(rows) + " rows, and new rows begin " +
         (source.base().random() ? "with random values, as all weights do"
                                 : "as the mean of the others");
}

}  // namespace

std::vector<std::string> model_notes(const ModelSource& source) {
  std::vector<std::string> notes = source.directory().notes();
  std::ranges::copy(source.arch().config_notes, std::back_inserter(notes));
  for (const std::string& note :
       {further_tokens_note(source), adapter_note(source), tokens_note(source)}) {
    if (!note.empty()) notes.push_back(note);
  }
  return notes;
}

}  // namespace longshore
