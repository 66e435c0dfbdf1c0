// Reads JSON, for tests of what programs print. It takes the standard's grammar but not \u escapes.
#pragma once

#include <cctype>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace jiffy {

struct JsonValue {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;
  std::string string;
  std::vector<JsonValue> array;
  std::map<std::string, JsonValue> object;

  bool is_null() const { return kind == Kind::kNull; }
  bool is_number() const { return kind == Kind::kNumber; }
  bool has(const std::string& key) const { return object.count(key) == 1; }
  // std::out_of_range, naming the key, if there is none.
  const JsonValue& at(const std::string& key) const {
    const auto it = object.find(key);
    if (it == object.end()) throw std::out_of_range("no key '" + key + "'");
    return it->second;
  }
};

class JsonReader {
 public:
  // Throws std::runtime_error with the position of what is wrong.
  static JsonValue parse(const std::string& text) {
    JsonReader reader(text);
    JsonValue value = reader.value();
    reader.space();
    if (reader.at_ != text.size()) reader.fail("more after the end");
    return value;
  }

 private:
  explicit JsonReader(const std::string& text) : text_(text) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("JSON, byte " + std::to_string(at_) + ": " + what);
  }
  void space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    space();
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("expected ") + c);
  }
  bool take_word(const std::string& word) {
    if (text_.compare(at_, word.size(), word) != 0) return false;
    at_ += word.size();
    return true;
  }

  JsonValue value() {
    space();
    JsonValue v;
    switch (peek()) {
      case '{':
        return read_object();
      case '[':
        return read_array();
      case '"':
        v.kind = JsonValue::Kind::kString;
        v.string = read_string();
        return v;
      default:
        break;
    }
    if (take_word("null")) return v;
    v.kind = JsonValue::Kind::kBool;
    v.boolean = take_word("true");
    if (v.boolean || take_word("false")) return v;
    return read_number();
  }

  JsonValue read_number() {
    JsonValue v;
    v.kind = JsonValue::Kind::kNumber;
    const char* begin = text_.c_str() + at_;
    char* end = nullptr;
    v.number = std::strtod(begin, &end);
    if (end == begin || std::isalpha(static_cast<unsigned char>(*begin)) != 0) {
      fail("expected a value");
    }
    at_ += static_cast<size_t>(end - begin);
    return v;
  }

  std::string read_string() {
    expect('"');
    std::string s;
    while (peek() != '"') {
      if (at_ >= text_.size()) fail("the string has no end");
      if (text_[at_] == '\\') ++at_;
      s += text_[at_++];
    }
    ++at_;
    return s;
  }

  JsonValue read_array() {
    JsonValue v;
    v.kind = JsonValue::Kind::kArray;
    expect('[');
    if (take(']')) return v;
    do v.array.push_back(value());
    while (take(','));
    expect(']');
    return v;
  }

  JsonValue read_object() {
    JsonValue v;
    v.kind = JsonValue::Kind::kObject;
    expect('{');
    if (take('}')) return v;
    do {
      space();
      std::string key = read_string();
      expect(':');
      if (!v.object.emplace(std::move(key), value()).second) fail("a key comes twice");
    } while (take(','));
    expect('}');
    return v;
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace jiffy
