#include "trainer/metrics/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/processor.h"

namespace longshore {
namespace {

constexpr std::string_view kNameHead = "events.out.tfevents.";

// Field numbers of Event, Summary, Summary.Value and SessionLog from
// tensorboard/compat/proto/event.proto and summary.proto.
constexpr uint32_t kEventTime = 1, kEventStep = 2, kEventVersion = 3, kEventSummary = 5,
                   kEventSession = 7;
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kValueTag = 1, kValueNumber = 2;
constexpr uint32_t kSessionStatus = 1;
constexpr uint64_t kSessionStart = 1;

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kCastagnoli = 0x82F63B78;  // reflected
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kCastagnoli : 0);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

// CRC-32C, rotated and offset as in TFRecord, so that a checksum over checksums is not constant.
uint32_t masked_crc(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc = kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF] ^ (crc >> 8);
  }
  return std::rotr(~crc, 15) + 0xA282EAD8;
}

template <typename Number>
std::string little_endian(Number number) {
  std::string text;
  for (size_t i = 0; i < sizeof number; ++i) text += static_cast<char>(number >> (8 * i) & 0xFF);
  return text;
}

// A message in protobuf's encoding. Fields are added in order of their numbers and zeros are left
// out, as protobuf's writers do, so equal messages have equal bytes.
class Message {
 public:
  void add_double(uint32_t field, double value) {
    add_key(field, 1);
    bytes_ += little_endian(std::bit_cast<uint64_t>(value));
  }
  void add_float(uint32_t field, float value) {
    add_key(field, 5);
    bytes_ += little_endian(std::bit_cast<uint32_t>(value));
  }
  void add_whole(uint32_t field, uint64_t value) {
    add_key(field, 0);
    add_varint(value);
  }
  void add_bytes(uint32_t field, std::string_view bytes) {
    add_key(field, 2);
    add_varint(bytes.size());
    bytes_ += bytes;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void add_key(uint32_t field, uint32_t type) { add_varint(field << 3 | type); }
  void add_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

Message event_at(double time, Step step) {
  Message event;
  event.add_double(kEventTime, time);
  if (step.value != 0) event.add_whole(kEventStep, static_cast<uint64_t>(step.value));
  return event;
}

std::string framed(const Message& event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.bytes().size()));
  return length + little_endian(masked_crc(length)) + event.bytes() +
         little_endian(masked_crc(event.bytes()));
}

// Returns the number that follows the prefix of an event file's name; 0 for other files.
int64_t number_of(const std::string& name) {
  if (!name.starts_with(kNameHead)) return 0;
  int64_t number = 0;
  std::from_chars(name.data() + kNameHead.size(), name.data() + name.size(), number);
  return number;
}

std::string new_name(const std::string& directory, double time) {
  auto number = static_cast<int64_t>(time);
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    number = std::max(number, number_of(entry.path().filename().string()) + 1);
  }
  std::string digits = std::to_string(number);
  digits.insert(0, 10 - std::min<size_t>(10, digits.size()), '0');
  const std::string host = host_name();
  return std::string(kNameHead) + digits + "." + (host.empty() ? "host" : host) + "." +
         std::to_string(::getpid());
}

UniqueFd open_new(const std::string& directory, double time) {
  make_own_directory(directory);
  std::string name;
  try {
    name = new_name(directory, time);
  } catch (const std::filesystem::filesystem_error& error) {
    throw IoError("read", directory, error.code().value());
  }
  return open_own_file(directory + "/" + name, O_WRONLY | O_CREAT | O_EXCL | O_APPEND);
}

}  // namespace

std::string version_event(double time) {
  Message event = event_at(time, Step(0));
  event.add_bytes(kEventVersion, "brain.Event:2");
  return framed(event);
}

std::string restart_event(double time, Step first) {
  Message session;
  session.add_whole(kSessionStatus, kSessionStart);
  Message event = event_at(time, first);
  event.add_bytes(kEventSession, session.bytes());
  return framed(event);
}

std::string scalar_event(double time, Step step, const std::vector<Scalar>& scalars) {
  Message summary;
  for (const Scalar& scalar : scalars) {
    Message value;
    value.add_bytes(kValueTag, scalar.tag);
    value.add_float(kValueNumber, static_cast<float>(scalar.value));
    summary.add_bytes(kSummaryValue, value.bytes());
  }
  Message event = event_at(time, step);
  event.add_bytes(kEventSummary, summary.bytes());
  return framed(event);
}

EventFile::EventFile(const std::string& directory, double time, Step first)
    : fd_(open_new(directory, time)), waiting_(version_event(time) + restart_event(time, first)) {
  write_waiting();
}

void EventFile::add(double time, Step step, const std::vector<Scalar>& scalars) {
  waiting_ += scalar_event(time, step, scalars);
  write_waiting();
}

void EventFile::write_waiting() {
  try {
    write_all(fd_, waiting_);
    bytes_ += static_cast<Bytes>(waiting_.size());
    waiting_.clear();
    failure_.clear();
  } catch (const IoError& error) {
    if (failure_.empty()) failure_ = error.what();
    // Readers stop at a torn record, so it is cut off.
    [[maybe_unused]] const int result = ::ftruncate(fd_.get(), bytes_);
  }
}

}  // namespace longshore
