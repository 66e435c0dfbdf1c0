// An intrusive balanced tree with a summary in each node: the run queue of the fair class (the
// earliest deadline among the eligible) and the timer base (the earliest expiry) stand on it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jiffy {

struct TreapNode {
  TreapNode* parent = nullptr;
  TreapNode* left = nullptr;
  TreapNode* right = nullptr;
  uint64_t priority = 0;
};

// A treap: a search tree by the caller's order and a heap by a pseudo-random priority, hence of
// expected logarithmic depth. Chosen over a red-black tree because its two operations fit on a
// screen; the expected number of rotations for an insert or an erase is below two.
//
// Traits gives:
//   static TreapNode* node(T*);  static T* item(TreapNode*);
//   static bool less(const T&, const T&);            strict weak order; equal items keep the
//                                                    order of their insertion
//   static bool summarize(T&, const T* l, const T* r);  recompute the summary of the node's
//                                                    subtree from its own value and its children;
//                                                    returns whether it changed
// Not thread safe; the owner's lock guards it. No allocation.
template <class T, class Traits>
class Treap {
 public:
  bool empty() const { return root_ == nullptr; }
  T* root() const { return root_ == nullptr ? nullptr : Traits::item(root_); }
  // The smallest item, kept at hand: O(1).
  T* first() const { return first_ == nullptr ? nullptr : Traits::item(first_); }

  static T* left(const T* item) { return item_or_null(Traits::node(const_cast<T*>(item))->left); }
  static T* right(const T* item) { return item_or_null(Traits::node(const_cast<T*>(item))->right); }

  void insert(T* item) {
    TreapNode* node = Traits::node(item);
    node->left = node->right = node->parent = nullptr;
    node->priority = next_priority();
    if (root_ == nullptr) {
      root_ = first_ = last_ = node;
      summarize(node);
      return;
    }
    link_in_order(item, node);
    summarize(node);
    while (node->parent != nullptr && node->parent->priority < node->priority) rotate_up(node);
    summarize_up(node->parent);
  }

  void erase(T* item) {
    TreapNode* node = Traits::node(item);
    if (node == root_ && node->left == nullptr && node->right == nullptr) {
      root_ = first_ = last_ = nullptr;
      return;
    }
    if (node == first_) first_ = successor(node);
    if (node == last_) last_ = predecessor(node);
    while (node->left != nullptr && node->right != nullptr) {
      rotate_up(node->left->priority > node->right->priority ? node->left : node->right);
    }
    TreapNode* child = node->left != nullptr ? node->left : node->right;
    TreapNode* parent = node->parent;
    if (child != nullptr) child->parent = parent;
    replace_child(parent, node, child);
    node->parent = node->left = node->right = nullptr;
    // Rotations keep the set below their top, so the ancestors were right until the unlink above.
    summarize_up(parent);
  }

  // The item's value changed in a way that keeps its place in the order.
  void refresh(T* item) { summarize_up(Traits::node(item)); }

 private:
  static T* item_or_null(TreapNode* n) { return n == nullptr ? nullptr : Traits::item(n); }

  static bool summarize(TreapNode* n) {
    return Traits::summarize(*Traits::item(n), item_or_null(n->left), item_or_null(n->right));
  }

  static void summarize_up(TreapNode* n) {
    while (n != nullptr && summarize(n)) n = n->parent;
  }

  void replace_child(TreapNode* parent, TreapNode* old_child, TreapNode* new_child) {
    if (parent == nullptr) {
      root_ = new_child;
    } else if (parent->left == old_child) {
      parent->left = new_child;
    } else {
      parent->right = new_child;
    }
  }

  // As a leaf at its place. The end is tried first: who yields, or starts a new request, mostly
  // goes behind all others, and the way from the root is a miss of the cache a level.
  void link_in_order(T* item, TreapNode* node) {
    if (!Traits::less(*item, *Traits::item(last_))) {
      last_->right = node;
      node->parent = last_;
      last_ = node;
      return;
    }
    TreapNode** link = &root_;
    TreapNode* parent = nullptr;
    bool leftmost = true;
    while (*link != nullptr) {
      parent = *link;
      if (Traits::less(*item, *Traits::item(parent))) {
        link = &parent->left;
      } else {
        link = &parent->right;
        leftmost = false;
      }
    }
    *link = node;
    node->parent = parent;
    if (leftmost) first_ = node;
  }

  // Lifts `node` over its parent, keeping the order.
  void rotate_up(TreapNode* node) {
    TreapNode* parent = node->parent;
    TreapNode* grand = parent->parent;
    if (parent->left == node) {
      parent->left = node->right;
      if (node->right != nullptr) node->right->parent = parent;
      node->right = parent;
    } else {
      parent->right = node->left;
      if (node->left != nullptr) node->left->parent = parent;
      node->left = parent;
    }
    parent->parent = node;
    node->parent = grand;
    replace_child(grand, parent, node);
    summarize(parent);
    summarize(node);
  }

  static TreapNode* successor(TreapNode* node) {
    if (node->right != nullptr) {
      node = node->right;
      while (node->left != nullptr) node = node->left;
      return node;
    }
    while (node->parent != nullptr && node->parent->right == node) node = node->parent;
    return node->parent;
  }

  static TreapNode* predecessor(TreapNode* node) {
    if (node->left != nullptr) {
      node = node->left;
      while (node->right != nullptr) node = node->right;
      return node;
    }
    while (node->parent != nullptr && node->parent->left == node) node = node->parent;
    return node->parent;
  }

  // xorshift64*: the shape of the tree is the same in each run, so the sim stays deterministic.
  uint64_t next_priority() {
    seed_ ^= seed_ >> 12;
    seed_ ^= seed_ << 25;
    seed_ ^= seed_ >> 27;
    return seed_ * 0x2545F4914F6CDD1Dull;
  }

  TreapNode* root_ = nullptr;
  TreapNode* first_ = nullptr;
  TreapNode* last_ = nullptr;
  uint64_t seed_ = 0x9E3779B97F4A7C15ull;
};

}  // namespace jiffy
