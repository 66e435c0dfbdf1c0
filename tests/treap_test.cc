#include "base/treap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <vector>

namespace jiffy {
namespace {

// A summary that can shrink and grow: the smallest and the largest value below, and how many.
struct Item {
  TreapNode node;
  int key = 0;
  int value = 0;
  int min_value = 12345;  // wrong until summarized
  int max_value = 12345;
  int size = 12345;
  int arrival = 0;
};

struct ItemTraits {
  static TreapNode* node(Item* item) { return &item->node; }
  static Item* item(TreapNode* node) { return reinterpret_cast<Item*>(node); }
  static bool less(const Item& a, const Item& b) { return a.key < b.key; }
  static bool summarize(Item& item, const Item* l, const Item* r) {
    int min_value = item.value;
    int max_value = item.value;
    int size = 1;
    for (const Item* child : {l, r}) {
      if (child == nullptr) continue;
      min_value = std::min(min_value, child->min_value);
      max_value = std::max(max_value, child->max_value);
      size += child->size;
    }
    const bool changed =
        min_value != item.min_value || max_value != item.max_value || size != item.size;
    item.min_value = min_value;
    item.max_value = max_value;
    item.size = size;
    return changed;
  }
};

using Tree = Treap<Item, ItemTraits>;

// Checks heap order, links and summaries below `item`; appends the items in order.
void walk(Item* item, std::vector<Item*>& in_order) {
  if (item == nullptr) return;
  Item* left = Tree::left(item);
  Item* right = Tree::right(item);
  int min_value = item->value;
  int max_value = item->value;
  int size = 1;
  walk(left, in_order);
  in_order.push_back(item);
  walk(right, in_order);
  for (Item* child : {left, right}) {
    if (child == nullptr) continue;
    EXPECT_EQ(child->node.parent, &item->node);
    EXPECT_LE(child->node.priority, item->node.priority);
    min_value = std::min(min_value, child->min_value);
    max_value = std::max(max_value, child->max_value);
    size += child->size;
  }
  EXPECT_EQ(item->min_value, min_value);
  EXPECT_EQ(item->max_value, max_value);
  EXPECT_EQ(item->size, size);
}

int depth(const Item* item) {
  return item == nullptr ? 0 : 1 + std::max(depth(Tree::left(item)), depth(Tree::right(item)));
}

// What a plain sorted list would hold.
class Checked {
 public:
  void insert(Item* item) {
    item->arrival = ++arrivals_;
    // Behind its equals.
    auto place = std::find_if(sorted_.begin(), sorted_.end(),
                              [&](const Item* other) { return item->key < other->key; });
    sorted_.insert(place, item);
    tree_.insert(item);
  }
  void erase(Item* item) {
    sorted_.remove(item);
    tree_.erase(item);
    EXPECT_EQ(item->node.parent, nullptr);
    EXPECT_EQ(item->node.left, nullptr);
    EXPECT_EQ(item->node.right, nullptr);
  }
  void check() {
    std::vector<Item*> in_order;
    walk(tree_.root(), in_order);
    EXPECT_TRUE(std::equal(in_order.begin(), in_order.end(), sorted_.begin(), sorted_.end()));
    EXPECT_EQ(tree_.empty(), sorted_.empty());
    EXPECT_EQ(tree_.first(), sorted_.empty() ? nullptr : sorted_.front());
    if (tree_.root() != nullptr) {
      EXPECT_EQ(tree_.root()->node.parent, nullptr);
    }
  }
  Tree& tree() { return tree_; }

 private:
  Tree tree_;
  std::list<Item*> sorted_;
  int arrivals_ = 0;
};

TEST(Treap, EmptyTreeHasNoFirst) {
  Tree tree;
  EXPECT_TRUE(tree.empty());
  EXPECT_EQ(tree.first(), nullptr);
  EXPECT_EQ(tree.root(), nullptr);
}

TEST(Treap, EqualItemsKeepTheOrderOfTheirInsertion) {
  std::vector<Item> items(50);
  Checked checked;
  for (Item& item : items) {
    item.key = 7;
    checked.insert(&item);
    checked.check();
  }
  for (Item& item : items) {
    EXPECT_EQ(checked.tree().first(), &item);
    checked.erase(&item);
    checked.check();
  }
}

TEST(Treap, FirstFollowsEachChangeAtTheLeftEnd) {
  std::vector<Item> items(20);
  Checked checked;
  for (int i = 0; i < 20; ++i) {
    items[static_cast<size_t>(i)].key = -i;
    checked.insert(&items[static_cast<size_t>(i)]);
    EXPECT_EQ(checked.tree().first(), &items[static_cast<size_t>(i)]);
  }
  for (int i = 19; i >= 0; --i) {
    EXPECT_EQ(checked.tree().first(), &items[static_cast<size_t>(i)]);
    checked.erase(&items[static_cast<size_t>(i)]);
  }
  EXPECT_TRUE(checked.tree().empty());
}

TEST(Treap, RandomChangesKeepOrderHeapAndSummaries) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<Item> items(40);
    std::vector<Item*> out;
    std::vector<Item*> in;
    for (Item& item : items) out.push_back(&item);
    Checked checked;
    for (int step = 0; step < 1000; ++step) {
      const bool insert = !out.empty() && (in.empty() || random() % 2 == 0);
      std::vector<Item*>& from = insert ? out : in;
      const size_t which = random() % from.size();
      Item* item = from[which];
      from.erase(from.begin() + static_cast<std::ptrdiff_t>(which));
      if (insert) {
        // Few keys, so that many are equal; few values, so that summaries often do not change.
        item->key = static_cast<int>(random() % 12);
        item->value = static_cast<int>(random() % 8);
        checked.insert(item);
        in.push_back(item);
      } else {
        checked.erase(item);
        out.push_back(item);
      }
      checked.check();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << " step " << step;
    }
  }
}

TEST(Treap, RefreshBringsAChangedValueUpToTheRoot) {
  std::mt19937 random(5);
  std::vector<Item> items(64);
  Checked checked;
  for (Item& item : items) {
    item.key = static_cast<int>(random() % 100);
    item.value = 50;
    checked.insert(&item);
  }
  for (int step = 0; step < 300; ++step) {
    Item& item = items[random() % items.size()];
    item.value = static_cast<int>(random() % 100);
    checked.tree().refresh(&item);
    checked.check();
  }
}

TEST(Treap, DepthStaysLogarithmicForSortedInput) {
  std::vector<Item> items(4096);
  Tree tree;
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].key = static_cast<int>(i);
    tree.insert(&items[i]);
  }
  // A random search tree of n nodes is expected to be below 3 log2(n) deep.
  EXPECT_LE(depth(tree.root()), 3 * 12 + 8);
  EXPECT_EQ(tree.root()->size, 4096);
}

}  // namespace
}  // namespace jiffy
