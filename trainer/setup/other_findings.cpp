#include "trainer/setup/other_findings.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <utility>

#include "base/file.h"
#include "base/texts.h"
#include "config/toml_document.h"

namespace longshore {
namespace {

constexpr JsonLimits kLimits{.max_bytes = 16 * kMiB, .max_depth = 16};
constexpr const char* kWrittenByTemplate =
    "LLaMA-Factory writes rows of prompts by its chat template; here data.prompt_template says how "
    "they are written, and rows of messages are written by the chat template";

// Returns the hub id with its configuration and split, as data.train names it.
std::string hub_id(const std::string& id, const std::string& config, const std::string& split) {
  if (!config.empty()) return id + ":" + config + ":" + (split.empty() ? "train" : split);
  return split.empty() || split == "train" ? id : id + ":" + split;
}

bool is_local(const std::string& path) {
  std::error_code ignored;
  const std::string extension = std::filesystem::path(path).extension().string();
  return path.starts_with(".") || path.starts_with("/") || path.starts_with("~") ||
         extension == ".json" || extension == ".jsonl" || extension == ".parquet" ||
         extension == ".txt" || std::filesystem::exists(path, ignored);
}

// Returns the value under `name`, which is then in `read`; null if the file has none.
const Json* value_at(const Json& file, const char* name, std::vector<std::string>& read) {
  read.emplace_back(name);
  const auto member = file.find(name);
  return member == file.end() || member->is_null() ? nullptr : &*member;
}

std::string text_at(const Json& file, const char* name, std::vector<std::string>& read) {
  read.emplace_back(name);
  return member_text(file, name);
}

class DataSetReader {
 public:
  DataSetReader(const Json& file, std::string directory)
      : file_(file), directory_(directory.empty() ? "data" : std::move(directory)) {}

  OtherDataSets read(const std::vector<std::string>& given) {
    // The other trainers' own order of rank: a list of entries, or a name.
    if (const Json* sets = take("datasets")) read_entries("datasets", *sets, found_.train);
    if (const Json* sets = take("pretraining_dataset")) {
      read_entries("pretraining_dataset", *sets, found_.train);
      left("pretraining_dataset", "the data is read whole, shuffled, instead of as a stream");
    }
    if (const Json* name = take("dataset")) read_names("dataset", *name, found_.train);
    if (const Json* name = take("dataset_name")) read_hub_name(*name);
    if (const Json* sets = take("test_datasets")) read_entries("test_datasets", *sets, found_.eval);
    if (const Json* name = take("eval_dataset")) read_names("eval_dataset", *name, found_.eval);
    if (const Json* field = take("dataset_text_field")) {
      if (field->is_string() && *field != "text") keys_["text"] = field->get<std::string>();
    }
    if (!given.empty()) {
      found_.train = given;
      found_.refused.clear();  // all of them are about data that is replaced
    } else if (found_.train.empty() && found_.refused.empty()) {
      refused("datasets", "it names no data that can be found; name the files with --data");
    }
    for (const auto& [member, name] : keys_) {
      found_.keys += (found_.keys.empty() ? "{ " : ", ") + member + " = " + quote_toml(name);
    }
    if (!keys_.empty()) found_.keys += " }";
    return std::move(found_);
  }

 private:
  const Json* take(const char* name) { return value_at(file_, name, found_.read); }
  std::string text(const char* name) { return text_at(file_, name, found_.read); }
  void left(const std::string& key, const std::string& why) { found_.left.emplace_back(key, why); }
  void refused(const std::string& key, const std::string& why) {
    found_.refused.emplace_back(key, why);
  }

  // Members have one name in all files of a run.
  void set_key(const std::string& place, const std::string& member, const std::string& name) {
    if (name.empty()) return;
    const auto [entry, added] = keys_.emplace(member, name);
    if (added || entry->second == name) return;
    left(place, "its rows name " + member + " \"" + printable(name, 40) + "\", those of another " +
                    "data set \"" + printable(entry->second, 40) + "\"; data.keys has one name");
  }

  // Axolotl's and TRL's entries: {path, name, split, data_files, type, ...}.
  void read_entries(const std::string& key, const Json& value, std::vector<std::string>& paths) {
    const Json list = value.is_array() ? value : Json::array({value});
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string place = key + "[" + std::to_string(i) + "]";
      if (list[i].is_string()) {
        paths.push_back(list[i].get<std::string>());
      } else if (list[i].is_object() && !member_text(list[i], "path").empty()) {
        read_entry(place, list[i], paths);
      } else {
        refused(place, "expected a data set with a path");
      }
    }
  }

  void read_entry(const std::string& place, const Json& entry, std::vector<std::string>& paths) {
    const std::string path = member_text(entry, "path"), split = member_text(entry, "split");
    if (split.find('[') != std::string::npos) {
      left(place + ".split", "it is a part of a split; the whole split is read");
    }
    std::vector<std::string> files;
    if (entry.contains("data_files")) files = texts_of(entry["data_files"]);
    if (!files.empty()) {
      std::error_code ignored;
      const bool inside = std::filesystem::is_directory(path, ignored);
      for (const std::string& file : files) paths.push_back(inside ? path + "/" + file : file);
    } else if (is_local(path)) {
      paths.push_back(path);
    } else {
      paths.push_back(hub_id(path, member_text(entry, "name"), split.substr(0, split.find('['))));
    }
    read_type(place, entry);
    set_key(place, "text", member_text(entry, "text_column"));
    set_key(place, "text",
            entry.value("type", Json()) == "completion" ? member_text(entry, "field") : "");
    const std::string messages = member_text(entry, "field_messages");
    if (messages != "messages" && messages != "conversations") {
      set_key(place, "messages", messages);
    }
    set_key(place, "chosen", member_text(entry, "field_chosen"));
    set_key(place, "rejected", member_text(entry, "field_rejected"));
    for (const char* name : {"message_property_mappings", "roles", "roles_to_train",
                             "chat_template", "shards", "drop_system_message"}) {
      if (!entry.contains(name) || entry[name].is_null()) continue;
      if (std::string_view(name) == "roles_to_train" && entry[name] == Json::array({"assistant"})) {
        continue;
      }
      left(place + "." + name,
           "the usual names of members and roles are known, the model's own template is used, and "
           "the assistant's messages are trained; check data shows the rows");
    }
  }

  void read_type(const std::string& place, const Json& entry) {
    const auto type = entry.find("type");
    if (type == entry.end() || type->is_null()) return;
    if (type->is_object()) return read_own_type(place, *type);
    const std::string name = type->is_string() ? type->get<std::string>() : "";
    if (name == "alpaca") {
      found_.prompt_template = "alpaca";
      return;
    }
    if (name == "completion" || name.starts_with("chat_template") || name.starts_with("sharegpt")) {
      return;
    }
    if (name.find('.') != std::string::npos) {
      return left(place + ".type = " + printable(name, 40),
                  "the form of the rows is told by their members, and the model's own chat "
                  "template writes their messages; check data shows the rows");
    }
    left(place + ".type = " + printable(name, 40),
         "the form of the rows is told by their members (data.format = \"auto\"); check data "
         "shows what is trained");
  }

  // Axolotl's own form of prompts: names of the members, and a text with {instruction}, {input}.
  void read_own_type(const std::string& place, const Json& type) {
    set_key(place, "prompt", member_text(type, "field_instruction"));
    set_key(place, "prompt", member_text(type, "field_prompt"));
    set_key(place, "chosen", member_text(type, "field_chosen"));
    set_key(place, "rejected", member_text(type, "field_rejected"));
    set_key(place, "context", member_text(type, "field_input"));
    set_key(place, "completion", member_text(type, "field_output"));
    std::string form = member_text(type, "format");
    for (const auto& [theirs, ours] :
         {std::pair("{instruction}", "{prompt}"), std::pair("{input}", "{context}")}) {
      const std::string name = theirs;
      for (size_t at = form.find(name); at != std::string::npos; at = form.find(name, at + 1)) {
        form.replace(at, name.size(), ours);
      }
    }
    found_.prompt_template = form;
    for (const char* name : {"field_system", "system_prompt", "system_format", "no_input_format"}) {
      if (!member_text(type, name).empty()) {
        left(place + ".type." + name,
             "data.prompt_template is one text, with {prompt} and "
             "{context}");
      }
    }
  }

  // LLaMA-Factory's names, which dataset_info.json explains.
  void read_names(const std::string& key, const Json& value, std::vector<std::string>& paths) {
    const std::string info = directory_ + "/dataset_info.json";
    std::error_code ignored;
    Json known = Json::object();
    if (std::filesystem::exists(info, ignored)) {
      known = parse_json(read_input(info, kLimits.max_bytes), kLimits, info);
    }
    for (const std::string& name : texts_of(value)) {
      if (is_local(name)) {
        paths.push_back(name);
      } else if (known.is_object() && known.contains(name) && known[name].is_object()) {
        read_named(key + " " + printable(name, 40), known[name], paths);
      } else {
        refused(key + " " + printable(name, 40),
                info + (known.empty() ? " is not here" : " does not name it") +
                    "; name the files with --data");
      }
    }
  }

  void read_named(const std::string& place, const Json& set, std::vector<std::string>& paths) {
    const std::string file = member_text(set, "file_name"), id = member_text(set, "hf_hub_url");
    if (!file.empty()) {
      paths.push_back(directory_ + "/" + file);
    } else if (!id.empty()) {
      paths.push_back(hub_id(id, member_text(set, "subset"), member_text(set, "split")));
    } else {
      return refused(place,
                     "it is neither a file nor a data set of the hub; name the files with "
                     "--data");
    }
    if (set.contains("num_samples")) left(place + " num_samples", "all rows are read");
    if (set.contains("tags")) {
      left(place + " tags",
           "the usual names of members and roles are known; check data shows the rows");
    }
    const bool conversations = member_text(set, "formatting") == "sharegpt";
    const bool named = file_.contains("template");  // the converter asks for the chat template
    if (!conversations && !named) left(place, kWrittenByTemplate);
    if (!set.contains("columns") || !set["columns"].is_object()) return;
    const Json& columns = set["columns"];
    for (const auto& [theirs, ours] :
         {std::pair("prompt", "prompt"), std::pair("query", "context"),
          std::pair("response", "completion"), std::pair("messages", "messages"),
          std::pair("tools", "tools"), std::pair("chosen", "chosen"),
          std::pair("rejected", "rejected")}) {
      const std::string name = member_text(columns, theirs);
      if (name != "conversations" && name != ours) set_key(place, ours, name);
    }
    for (const char* name : {"images", "videos", "audios", "history"}) {
      if (!member_text(columns, name).empty()) left(place + " " + name, "it is not read");
    }
    if (!member_text(columns, "kto_tag").empty()) {
      left(place + " kto_tag", "give the rows prompt, completion and label; docs/data.md");
    }
  }

  // TRL's dataset_name with its configuration and splits.
  void read_hub_name(const Json& name) {
    const std::string path = name.is_string() ? name.get<std::string>() : "";
    const std::string config = text("dataset_config"), split = text("dataset_train_split");
    const std::string held_out = text("dataset_test_split");
    if (path.empty()) return refused("dataset_name", "expected a path or an id");
    found_.train.push_back(is_local(path) ? path : hub_id(path, config, split));
    const std::string evaluated = member_text(file_, "eval_strategy");
    if (evaluated.empty() || evaluated == "no" || is_local(path)) return;
    found_.eval.push_back(hub_id(path, config, held_out.empty() ? "test" : held_out));
  }

  const Json& file_;
  std::string directory_;
  OtherDataSets found_;
  std::map<std::string, std::string> keys_;
};

constexpr const char* kLosses =
    "`init --from` converts supervised fine-tuning, and the losses sigmoid (dpo), robust, ipo, "
    "orpo, simpo and kto over preferences; not rewards";

// Names of TRL and LLaMA-Factory for a loss, and the name in the run file.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames = {
    {{"sigmoid", "dpo"},
     {"robust", "dpo-robust"},
     {"ipo", "ipo"},
     {"orpo", "orpo"},
     {"simpo", "simpo"},
     {"kto", "kto"}}};

class PreferenceReader {
 public:
  PreferenceReader(const Json& file, std::string_view trainer) : file_(file), trainer_(trainer) {}

  OtherPreference read() {
    if (trainer_ == "Axolotl") read_axolotl();
    if (trainer_ == "LLaMA-Factory") read_llama_factory();
    if (trainer_ == "TRL") read_trl();
    read_numbers();
    read_reference();
    return std::move(found_);
  }

 private:
  const Json* take(const char* name) { return value_at(file_, name, found_.read); }
  std::string text(const char* name) { return text_at(file_, name, found_.read); }
  void refuse(const std::string& key, const std::string& value) {
    found_.refused.emplace_back(key + " = " + printable(value, 40), kLosses);
  }

  // Sets the loss of this name; `value` may be a list of one name.
  void name_loss(const char* key, const Json& value) {
    const std::vector<std::string> names = texts_of(value);
    const auto known = std::ranges::find_if(
        kNames, [&](const auto& name) { return names.size() == 1 && name.first == names.front(); });
    if (known == kNames.end()) return refuse(key, value.dump());
    found_.loss = known->second;
  }

  void read_axolotl() {
    const Json* rl = take("rl");
    const Json* type = take("dpo_loss_type");
    if (rl == nullptr || *rl == false || *rl == "") return;
    const std::string name = rl->is_string() ? rl->get<std::string>() : rl->dump();
    if (name == "dpo") {
      name_loss("dpo_loss_type", type == nullptr ? Json("sigmoid") : *type);
    } else if (name == "ipo" || name == "orpo" || name == "simpo" || name == "kto") {
      found_.loss = name;
    } else {
      refuse("rl", name);
    }
  }

  void read_llama_factory() {
    const std::string stage = text("stage");
    const Json* type = take("pref_loss");
    if (stage == "dpo") {
      name_loss("pref_loss", type == nullptr ? Json("sigmoid") : *type);
    } else if (stage == "kto") {
      found_.loss = "kto";
    } else if (!stage.empty() && stage != "sft" && stage != "pt") {
      refuse("stage", stage);
    }
  }

  // A file of TRL does not name its trainer, so the arguments tell.
  void read_trl() {
    const auto has = [this](const char* name) { return file_.contains(name); };
    if (const Json* type = take("loss_type"); type != nullptr && *type != "nll") {
      return name_loss("loss_type", *type);
    }
    if (has("desirable_weight") || has("undesirable_weight")) {
      found_.loss = "kto";
    } else if (has("beta") || has("label_smoothing") || has("reference_free") ||
               has("precompute_ref_log_probs") || has("f_divergence_type") ||
               has("max_prompt_length")) {
      found_.loss = "dpo";
      found_.left.emplace_back("beta",
                               "the arguments are taken for DPO's; for those of ORPO or KTO set "
                               "train.loss");
    }
  }

  // Takes the first of the file's keys that has a value.
  void number(const char* ours, std::initializer_list<const char*> theirs, bool used = true) {
    for (const char* name : theirs) {
      if (take(name) == nullptr || !used) continue;
      found_.numbers.emplace_back(ours, name);
      return;
    }
  }

  void read_numbers() {
    const std::string& loss = found_.loss;
    const bool kto = loss == "kto", simpo = loss == "simpo";
    const bool smooths = loss == "dpo" || loss == "dpo-robust" || simpo;
    number("beta", {"orpo_alpha"}, loss == "orpo");
    const bool alpha = loss == "orpo" && !found_.numbers.empty();
    number("beta", {"rl_beta", "pref_beta", "beta"}, !loss.empty() && !alpha);
    number("gamma", {"simpo_gamma"}, simpo);
    // TRL takes no notice of it with the loss "sigmoid".
    const bool ignored = trainer_ == "TRL" && loss == "dpo";
    number("label_smoothing", {"dpo_label_smoothing", "label_smoothing"}, smooths && !ignored);
    const Json* smoothing = take("label_smoothing");
    if (ignored && smoothing != nullptr && *smoothing != 0) {
      found_.left.emplace_back("label_smoothing",
                               "TRL takes no notice of it with this loss; "
                               "preference.label_smoothing would be used");
    }
    number("desirable_weight", {"kto_desirable_weight", "kto_chosen_weight", "desirable_weight"},
           kto);
    number("undesirable_weight",
           {"kto_undesirable_weight", "kto_rejected_weight", "undesirable_weight"}, kto);
    if (simpo && trainer_ != "LLaMA-Factory" && !file_.contains("cpo_alpha")) {
      found_.left.emplace_back("cpo_alpha",
                               "without it TRL adds a loss of supervised fine-tuning (1.0); "
                               "Longshore adds none");
    }
  }

  void read_reference() {
    const std::string divergence = text("f_divergence_type");
    if (!divergence.empty() && divergence != "reverse_kl") {
      refuse("f_divergence_type", divergence);
    }
    found_.reference = text("ref_model");
  }

  const Json& file_;
  std::string_view trainer_;
  OtherPreference found_;
};

}  // namespace

std::vector<std::string> texts_of(const Json& value) {
  std::vector<std::string> texts;
  if (value.is_array()) {
    for (const Json& element : value) {
      if (element.is_string()) texts.push_back(element.get<std::string>());
    }
    return texts;
  }
  if (!value.is_string()) return texts;
  const std::string& all = value.get_ref<const std::string&>();
  for (size_t begin = 0; begin <= all.size();) {
    const size_t comma = std::min(all.find(',', begin), all.size());
    const size_t first = all.find_first_not_of(" \t", begin);
    if (first < comma) {
      const size_t last = all.find_last_not_of(" \t", comma - 1);
      texts.push_back(all.substr(first, last + 1 - first));
    }
    begin = comma + 1;
  }
  return texts;
}

OtherDataSets read_other_data_sets(const Json& file, const std::vector<std::string>& given,
                                   const std::string& dataset_directory) {
  return DataSetReader(file, dataset_directory).read(given);
}

OtherPreference read_other_preference(const Json& file, std::string_view trainer) {
  return PreferenceReader(file, trainer).read();
}

}  // namespace longshore
