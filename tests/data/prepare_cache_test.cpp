// The cache of prepared data: entries made again, kills, damage, processes, compressed files.
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <set>

#include "base/hash.h"
#include "base/random.h"
#include "tests/data/prepare_fixture.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string many_rows(int rows) {
  std::string content;
  for (int row = 0; row < rows; ++row) {
    const auto random = philox4x32({static_cast<uint32_t>(row), 0, 0, 0}, {5, 0});
    content += "{\"text\": \"";
    for (uint32_t word = 0; word < 1 + random[0] % 80; ++word) content += "word ";
    content += std::to_string(row) + "\"}\n";
    if (row % 97 == 0) content += "\n";
  }
  return content;
}

std::string gzipped(const std::string& text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd_compressed(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

class PrepareCache : public PrepareFixture {
 protected:
  PrepareCache() { options_.data.max_tokens = 4096; }

  std::string bytes_of_entry() {
    const PreparedData prepared = prepare_or_open(options_);
    return read_whole_file(prepared.paths.at(0), kGiB);
  }
};

// An entry is made once, and again only when something that affects its tokens changes.
TEST_F(PrepareCache, MakesAnEntryOnceAndAnewWhenAnythingThatMattersChanges) {
  options_.files = {files_.write("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n")};
  EXPECT_EQ(prepare_or_open(options_).made, 1);
  EXPECT_EQ(prepare_or_open(options_).made, 0);
  options_.files = {files_.write("b.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n")};
  options_.threads = 1;
  EXPECT_EQ(prepare_or_open(options_).made, 0) << "the same bytes under another name";
  options_.data.add_eos = false;
  EXPECT_EQ(prepare_or_open(options_).made, 1);
  options_.data.max_tokens = 7;
  EXPECT_EQ(prepare_or_open(options_).made, 1);
  options_.files = {files_.write("b.jsonl", "{\"text\": \"one\"}\n{\"text\": \"twe\"}\n")};
  EXPECT_EQ(prepare_or_open(options_).made, 1);
}

// Goal: every setting that affects tokens is part of an entry's name, one by one.
TEST_F(PrepareCache, KnowsEntriesByEverySettingThatMatters) {
  options_.files = {files_.write(
      "a.jsonl",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
      "\"content\": \"a\"}], \"dialog\": [{\"role\": \"user\", \"content\": \"r\"}, {\"role\": "
      "\"assistant\", \"content\": \"b\"}], \"text\": \"t\", \"prompt\": \"p\", "
      "\"completion\": \"c\", \"context\": \"x\"}\n")};
  const auto made = [this] { return prepare_or_open(options_).made; };
  ASSERT_EQ(made(), 1);
  const PrepareOptions first = options_;
  const auto expect_anew = [&](const char* what, const std::function<void()>& change) {
    options_ = first;
    change();
    EXPECT_EQ(made(), 1) << what;
    EXPECT_EQ(made(), 0) << what;
    options_ = first;
    EXPECT_EQ(made(), 0) << what;
  };
  const ChatTemplate other = ChatTemplate::from_text(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}",
      letters(), "2024-07-26", "other");
  const TrainedTokenizer trained = byte_tokenizer({.eos_token = "<end>"});
  const Tokenizer other_ends = Tokenizer::from_files(
      {.tokenizer = trained.tokenizer_json, .tokenizer_config = trained.tokenizer_config_json},
      "other");
  expect_anew("the tokenizer", [&] { options_.tokenizer = &other_ends; });
  expect_anew("the chat template", [&] { options_.chat = &other; });
  expect_anew("data.keys", [&] { options_.data.keys = {"messages = \"dialog\""}; });
  expect_anew("data.format", [&] { options_.data.format = DataSection::Format::kText; });
  expect_anew("data.mask", [&] { options_.data.mask = DataSection::Mask::kAll; });
  expect_anew("data.template_arguments",
              [&] { options_.data.template_arguments = {"thinking = true"}; });
  expect_anew("data.prompt_template", [&] {
    options_.data.format = DataSection::Format::kPromptCompletion;
    options_.data.prompt_template = "Q: {prompt}";
  });
  expect_anew("the same, otherwise", [&] {
    options_.data.format = DataSection::Format::kPromptCompletion;
    options_.data.prompt_template = "Q! {prompt}";
  });
  expect_anew("data.bad_rows", [&] { options_.data.bad_rows = DataSection::BadRows::kSkip; });
  expect_anew("data.overlength",
              [&] { options_.data.overlength = DataSection::Overlength::kDrop; });
  expect_anew("data.max_rows", [&] { options_.data.max_rows = 1; });
  expect_anew("data.add_eos", [&] { options_.data.add_eos = !first.data.add_eos; });
  expect_anew("the vocabulary", [&] { options_.model_vocabulary_size = 300; });
}

// The prepared bytes are equal at any number of threads.
TEST_F(PrepareCache, GivesTheSameBytesAtAnyNumberOfThreads) {
  options_.files = {files_.write("rows.jsonl", many_rows(3000))};
  options_.threads = 1;
  const std::string one = bytes_of_entry();
  remove_tree(options_.cache);
  options_.threads = 4;
  EXPECT_EQ(bytes_of_entry(), one);
}

// Files compressed with gzip or zstd give the tokens of the plain file.
TEST_F(PrepareCache, ReadsCompressedFiles) {
  const std::string rows = many_rows(300);
  options_.files = {files_.write("rows.jsonl", rows)};
  const LoadedData plain = load();
  for (const std::string& packed :
       {gzipped(rows), gzipped(rows.substr(0, 1000)) + gzipped(rows.substr(1000)),
        zstd_compressed(rows)}) {
    options_.files = {files_.write("rows.jsonl.packed", packed)};
    const LoadedData read = load();
    ASSERT_EQ(read.dataset->document_count(), plain.dataset->document_count());
    EXPECT_EQ(tokens_of(read, 299), tokens_of(plain, 299));
    const std::string cut = refusal(packed.substr(0, packed.size() / 2), "cut.jsonl");
    EXPECT_NE(cut.find("it is damaged or cut off"), std::string::npos) << cut;
  }
  options_.files = {files_.write("a.txt.gz", gzipped("hello"))};
  EXPECT_EQ(text_of(tokens_of(load(), 0)), "hello</s>");
  EXPECT_NE(refusal("PAR1....").find("the file is cut off, or no Parquet file"), std::string::npos);
}

// A process that is killed at different offsets resumes, and the last one ends with the same bytes.
TEST_F(PrepareCache, GoesOnAfterKillsAndEndsWithTheSameBytes) {
  options_.files = {files_.write("rows.jsonl", many_rows(8000))};
  const std::string whole = bytes_of_entry();
  const std::string path = prepare_or_open(options_).paths.at(0);
  remove_tree(options_.cache);
  options_.save_every_bytes = 300 * kKiB;
  options_.threads = 1;  // this process forks, so it has no threads
  int kills = 0;
  for (int round = 0; round < 40 && !fs::exists(path); ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      int calls = 0;
      options_.on_progress = [&calls, round](const PrepareProgress& progress) {
        if (progress.tokens > 0 && ++calls > 2 + round % 3) ::_exit(9);
      };
      try {
        prepare_or_open(options_);
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_NE(WEXITSTATUS(status), 1);
    kills += WEXITSTATUS(status) == 9 ? 1 : 0;
  }
  EXPECT_GE(kills, 2);
  EXPECT_EQ(bytes_of_entry(), whole);
  EXPECT_FALSE(fs::exists(path.substr(0, path.size() - 4) + ".partial"));
}

// Returns when a process in this cache last saved its progress.
std::optional<fs::file_time_type> last_note(const std::string& cache) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(cache, ignored)) {
    if (entry.path().extension() != ".partial") continue;
    const auto time = fs::last_write_time(entry.path() / "progress.json", ignored);
    if (!ignored) return time;
  }
  return std::nullopt;
}

// Waits until the child has saved progress or has ended.
void wait_for_note(const std::string& cache, std::optional<fs::file_time_type> before,
                   pid_t child) {
  siginfo_t ended{};
  while (last_note(cache) == before) {
    ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT);
    if (ended.si_pid == child) return;
    ::usleep(200);
  }
}

// After SIGKILL at random moments the last process ends with the same bytes.
TEST_F(PrepareCache, EndsWithTheSameBytesAfterKillsAtRandomMoments) {
  options_.files = {files_.write("rows.jsonl", many_rows(8000))};
  const std::string whole = bytes_of_entry();
  remove_tree(options_.cache);
  options_.save_every_bytes = 20 * kKiB;
  options_.threads = 1;  // this process forks, so it has no threads
  std::mt19937 random(11);
  int kills = 0;
  for (int round = 0; round < 15; ++round) {
    const std::optional<fs::file_time_type> before = last_note(options_.cache);
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        prepare_or_open(options_);
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    wait_for_note(options_.cache, before, child);
    ::usleep(std::uniform_int_distribution<useconds_t>(0, 5000)(random));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ++kills;
  }
  EXPECT_GE(kills, 3) << "while the entry was being written";
  EXPECT_EQ(bytes_of_entry(), whole);
}

// A preparation that is stopped resumes from its last saved progress.
TEST_F(PrepareCache, KeepsWhatIsDoneWhenItIsStopped) {
  options_.files = {files_.write("rows.jsonl", many_rows(8000))};
  options_.save_every_bytes = 300 * kKiB;
  uint64_t reached = 0;
  options_.on_progress = [&reached](const PrepareProgress& progress) {
    reached = progress.tokens;
    if (reached > 800'000) throw Error(ExitCode::kFailure, "stop");
  };
  EXPECT_THROW(prepare_or_open(options_), Error);
  uint64_t first = 0;
  options_.on_progress = [&first](const PrepareProgress& progress) {
    if (first == 0) first = progress.tokens;
  };
  prepare_or_open(options_);
  EXPECT_GT(first, 300'000u);
}

// If several processes request one entry at the same time, exactly one of them makes it.
TEST_F(PrepareCache, LetsSeveralProcessesAskAtOnce) {
  options_.files = {files_.write("rows.jsonl", many_rows(4000))};
  options_.threads = 1;
  std::vector<pid_t> children;
  for (int process = 0; process < 4; ++process) {
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 1;
      try {
        code = prepare_or_open(options_).made == 1 ? 7 : 8;
      } catch (...) {
      }
      ::_exit(code);
    }
    children.push_back(child);
  }
  int made = 0;
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_NE(WEXITSTATUS(status), 1);
    made += WEXITSTATUS(status) == 7 ? 1 : 0;
  }
  EXPECT_EQ(made, 1);
}

// Every flipped byte and every cut of a token file is detected.
TEST_F(PrepareCache, NoticesEveryFlippedByte) {
  options_.files = {files_.write("rows.jsonl", many_rows(40))};
  const PreparedData prepared = prepare_or_open(options_);
  const std::string path = prepared.paths.at(0), whole = read_whole_file(path, kGiB);
  const std::string copy = files_.path("copy.tok");
  for (size_t at = 0; at < whole.size(); at += at < 200 ? 1 : 211) {
    if (at >= 144 && at < 4096) continue;  // padding of the header
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    files_.write("copy.tok", damaged);
    EXPECT_THROW(TokenFile(copy).verify(), DataError) << at;
  }
  for (const size_t bytes : {size_t{0}, size_t{10}, size_t{4096}, whole.size() - 1}) {
    files_.write("copy.tok", whole.substr(0, bytes));
    EXPECT_THROW(TokenFile(copy).verify(), DataError) << bytes;
  }
}

// PrepareCacheInUse: a token file of several pieces, whose first pieces are read only on use.
class PrepareCacheInUse : public PrepareCache {
 protected:
  PrepareCacheInUse() {
    options_.data.max_tokens = 1024;
    std::string rows;
    for (int row = 0; row < 700; ++row) {
      rows += "{\"text\": \"" + std::string(1000, static_cast<char>('a' + row % 26)) + "\"}\n";
    }
    options_.files = {files_.write("rows.jsonl", rows)};
    path_ = prepare_or_open(options_).paths.at(0);
    whole_ = read_whole_file(path_, kGiB);
  }
  static Ids all_tokens(const TokenFile& file) {
    Ids tokens, targets;
    for (int64_t document = 0; document < file.document_count(); ++document) {
      file.append_document(document, tokens, targets);
    }
    return tokens;
  }
  // Returns the error of reading an open file after the change; "" if there is none.
  std::string error_after(const std::function<void()>& change) const {
    const TokenFile file(path_);
    change();
    std::string text;
    try {
      all_tokens(file);
    } catch (const DataError& error) {
      text = error.what();
    }
    write_all(create_file(path_), whole_);
    return text;
  }

  std::string path_, whole_;
};

// A file that is cut or written to while it is open is an error that names it. A mapping ended the
// program by a signal, or gave the other tokens.
TEST_F(PrepareCacheInUse, AChangedFileIsADataError) {
  ASSERT_GT(static_cast<Bytes>(whole_.size()), 2 * kTokenPieceBytes);
  EXPECT_EQ(error_after([] {}), "");
  for (const uintmax_t bytes : {uintmax_t{0}, uintmax_t{4096}, uintmax_t{1} << 20}) {
    const std::string text = error_after([&] { std::filesystem::resize_file(path_, bytes); });
    EXPECT_EQ(text.find(path_ + ": was cut to " + std::to_string(bytes) + " bytes"), 0u) << text;
  }
  std::string other = whole_;
  char& id = other[static_cast<size_t>(kTokenHeaderBytes)];
  id = static_cast<char>(id ^ 2);
  for (const std::string& content : {other, std::string(whole_.size(), '\xff')}) {
    const std::string text = error_after([&] { write_all(create_file(path_), content); });
    EXPECT_EQ(text.find(path_ + ": damaged in the "), 0u) << text;
  }
}

// A file whose name another file takes, or that is removed, stays as it was for its readers.
TEST_F(PrepareCacheInUse, AReplacedFileKeepsItsTokens) {
  const TokenFile file(path_);
  const std::string aside = files_.path("aside.tok");
  std::filesystem::copy_file(path_, aside);
  const Ids expected = all_tokens(TokenFile(aside));
  files_.write("other.tok", std::string(whole_.size(), '\xff'));
  std::filesystem::rename(files_.path("other.tok"), path_);
  EXPECT_EQ(all_tokens(file), expected);
}

// An id that the model does not have is an error where a batch is made, although the file is whole.
TEST_F(PrepareCacheInUse, AnIdOutsideTheVocabularyIsADataError) {
  const TokenFileHeader header = TokenFile(path_).header();
  for (const TokenId id : {257, -1}) {
    std::string forged = whole_;
    std::memcpy(forged.data() + header.ids_offset, &id, sizeof id);
    const uint64_t checksum =
        hash64(std::string_view(forged).substr(kTokenHeaderBytes, kTokenPieceBytes));
    std::memcpy(forged.data() + header.checksums_offset, &checksum, sizeof checksum);
    const TokenFile file(files_.write("forged.tok", forged));
    EXPECT_NO_THROW(file.verify());
    try {
      all_tokens(file);
      ADD_FAILURE() << id;
    } catch (const DataError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("has the token id " + std::to_string(id)), std::string::npos) << text;
    }
  }
}

// A damaged entry is made again with the same bytes.
TEST_F(PrepareCache, MakesADamagedEntryAnew) {
  options_.files = {files_.write("rows.jsonl", many_rows(40))};
  const std::string path = prepare_or_open(options_).paths.at(0);
  const std::string whole = read_whole_file(path, kGiB);
  write_all(create_file(path), whole.substr(0, 5000));
  EXPECT_EQ(prepare_or_open(options_).made, 1);
  EXPECT_EQ(read_whole_file(path, kGiB), whole);
}

// Goal: the fingerprint of data is that of earlier versions, so that their runs can resume.
TEST_F(PrepareCache, KeepsTheFingerprintThatDataHadBefore) {
  options_.data.max_tokens = 4096;
  const std::string row =
      "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, "
      "{\"role\": \"assistant\", \"content\": \"a\"}]}\n";
  options_.files = {files_.write("rows.jsonl", "{\"text\": \"one\"}\n"),
                    files_.write("chat.jsonl", row)};
  const PreparedData prepared = prepare_or_open(options_);
  EXPECT_EQ(hash_text(prepared.files.at(0)->fingerprint()), "aac0eb482d226c1f");
  EXPECT_EQ(hash_text(prepared.files.at(1)->fingerprint()), "84ec5b9f2a9dc3dd");
}

class Combined : public PrepareFixture {
 protected:
  std::multiset<std::string> texts(const std::vector<double>& weights, const HoldOut& hold_out) {
    PreparedData prepared = prepare_or_open(options_);
    std::vector<std::shared_ptr<const Dataset>> files;
    for (auto& file : prepared.files) files.push_back(std::move(file));
    const CombinedDataset set(std::move(files), weights, hold_out);
    std::multiset<std::string> texts;
    for (int64_t d = 0; d < set.document_count(); ++d) {
      Ids tokens, targets;
      set.append_document(d, tokens, targets);
      EXPECT_EQ(static_cast<int64_t>(tokens.size()), set.document_tokens(d));
      texts.insert(text_of(tokens));
    }
    return texts;
  }
};

// Each file is repeated as often as its weight says.
TEST_F(Combined, ReadsEachFileAsOftenAsItsWeightSays) {
  options_.files = {files_.write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"),
                    files_.write("c.jsonl", "{\"text\": \"c\"}\n{\"text\": \"d\"}\n")};
  EXPECT_EQ(texts({2.0, 0.0}, {}),
            (std::multiset<std::string>{"a</s>", "a</s>", "b</s>", "b</s>"}));
  EXPECT_EQ(texts({0.5, 1.0}, {}).size(), 3u);
  EXPECT_EQ(texts({1.5, 2.5}, {}).size(), 8u);
}

// The held-out documents are exactly those that are not trained.
TEST_F(Combined, HoldsOutTheSameDocumentsThatItDoesNotTrain) {
  std::string rows;
  for (int row = 0; row < 50; ++row) rows += "{\"text\": \"" + std::to_string(row) + "\"}\n";
  options_.files = {files_.write("a.jsonl", rows)};
  const auto held = texts({}, {.part = HoldOut::Part::kHeldOut, .fraction = 0.2, .seed = 3});
  auto trained = texts({}, {.part = HoldOut::Part::kTrained, .fraction = 0.2, .seed = 3});
  EXPECT_EQ(held.size(), 10u);
  EXPECT_EQ(trained.size(), 40u);
  trained.insert(held.begin(), held.end());
  EXPECT_EQ(trained, texts({}, {}));
  EXPECT_NE(texts({}, {.part = HoldOut::Part::kHeldOut, .fraction = 0.2, .seed = 4}), held);
}

// Goal: samples of one conversation are held out, trained and repeated together.
TEST_F(Combined, KeepsTheSamplesOfAConversationTogether) {
  const ChatTemplate forgets = ChatTemplate::from_text(
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and not loop.last %}-"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}",
      letters(), "2024-07-26", "forgets");
  options_.chat = &forgets;
  options_.data.max_tokens = 4096;
  std::string rows;
  for (int row = 0; row < 20; ++row) {
    const std::string name = std::to_string(row);
    rows += "{\"messages\": [{\"role\": \"user\", \"content\": \"q" + name +
            "\"}, {\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": \"user\", "
            "\"content\": \"r\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n";
  }
  options_.files = {files_.write("a.jsonl", rows)};
  const auto held = texts({}, {.part = HoldOut::Part::kHeldOut, .fraction = 0.25, .seed = 3});
  EXPECT_EQ(held.size(), 10u);
  for (const std::string& text : held) {
    const std::string question = text.substr(0, text.find("<assistant>"));
    EXPECT_EQ(held.count(question + "<assistant>a"), 1u) << text;
    EXPECT_EQ(held.count(question + "<assistant>-<user>r<assistant>b"), 1u) << text;
  }
  EXPECT_EQ(texts({1.5}, {}).size(), 60u);
  const FileReport report = prepare_or_open(options_).report.files.at(0);
  EXPECT_EQ(report.resampled_rows, 20);
  EXPECT_GT(report.resampled_tokens, 20 * 16);
}

// Goal: files of equal length hold out different rows, because each has its own random numbers.
TEST_F(Combined, HoldsOutOtherRowsOfEachFile) {
  std::string first, second;
  for (int row = 0; row < 50; ++row) {
    first += "{\"text\": \"a" + std::to_string(row) + "\"}\n";
    second += "{\"text\": \"b" + std::to_string(row) + "\"}\n";
  }
  options_.files = {files_.write("a.jsonl", first), files_.write("b.jsonl", second)};
  std::set<std::string> of_first, of_second;
  for (const std::string& text :
       texts({}, {.part = HoldOut::Part::kHeldOut, .fraction = 0.2, .seed = 3})) {
    (text.front() == 'a' ? of_first : of_second).insert(text.substr(1));
  }
  EXPECT_EQ(of_first.size(), 10u);
  EXPECT_EQ(of_second.size(), 10u);
  EXPECT_NE(of_first, of_second);
}

}  // namespace
}  // namespace longshore
