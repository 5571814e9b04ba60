// Lint and layout of the page's scripts; `npm run lint -- --fix` lays them out. Run from the repository's root.
import stylistic from "@stylistic/eslint-plugin";

const BROWSER = `window document CSS queueMicrotask location history navigator localStorage Node Option Image Blob URL Event CustomEvent
  MutationObserver ResizeObserver getComputedStyle requestAnimationFrame setTimeout clearTimeout setInterval
  clearInterval console`.split(/\s+/);
const COMPONENT = ["props", "element", "watch", "trigger", "SPEC", "Playground"]; // what a script.js is given
const readonly = (names) => Object.fromEntries(names.map((name) => [name, "readonly"]));

const correctness = {
  "no-undef": "error",
  "no-unused-vars": ["error", { varsIgnorePattern: "^draw$" }],
  "no-use-before-define": ["error", { functions: false, variables: false }],
  "no-redeclare": "error",
  "no-dupe-keys": "error",
  "no-unreachable": "error",
  "no-fallthrough": "error",
  "no-self-compare": "error",
  "no-implicit-globals": "off",
  "no-unsafe-optional-chaining": "error",
  "no-constant-condition": "error",
  "no-loss-of-precision": "error",
  "no-eval": "error",
  "no-implied-eval": "error",
  "array-callback-return": "error",
  eqeqeq: "error",
  "no-var": "error",
  "prefer-const": "error",
  "object-shorthand": "error",
  "prefer-arrow-callback": "error",
};

const layout = stylistic.configs.customize({ quotes: "double", semi: true, arrowParens: true, braceStyle: "1tbs" });
const looser = {
  "@stylistic/max-statements-per-line": "off",
  "@stylistic/brace-style": ["error", "1tbs", { allowSingleLine: true }],
  "@stylistic/operator-linebreak": "off",
  "@stylistic/multiline-ternary": "off",
  "@stylistic/indent": ["error", 2, { ignoredNodes: ["ConditionalExpression", "BinaryExpression", "LogicalExpression"], CallExpression: { arguments: "off" }, ArrayExpression: "off", flatTernaryExpressions: true, VariableDeclarator: "off" }],
  "@stylistic/max-len": ["error", { code: 160, ignoreStrings: true, ignoreTemplateLiterals: true }],
  "@stylistic/list-style": "off",
  "@stylistic/indent-binary-ops": "off",
  "@stylistic/quotes": ["error", "double", { avoidEscape: true, allowTemplateLiterals: "always" }],
  "@stylistic/quote-props": ["error", "as-needed"],
  "@stylistic/comma-dangle": ["error", "only-multiline"],
  "@stylistic/no-multi-spaces": ["error", { ignoreEOLComments: true }],
};

export default [
  { ignores: ["**/node_modules/**"] },
  {
    files: ["**/*.js"],
    plugins: layout.plugins,
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: { ...correctness, ...layout.rules, ...looser },
  },
  {
    files: ["ui/components/**/*.js"],
    languageOptions: { sourceType: "script", globals: readonly([...BROWSER, ...COMPONENT]) },
    rules: {
      // Text from users and models only ever becomes text nodes.
      "no-restricted-properties": ["error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML", "write"].map((property) => ({ property }))],
    },
  },
  {
    files: ["ui/components/*/script.js"], // the body of a function
    languageOptions: { parserOptions: { ecmaFeatures: { globalReturn: true } } },
    rules: { "no-redeclare": ["error", { builtinGlobals: false }] },
  },
  {
    files: ["tests/javascript/**/*.js"],
    languageOptions: { globals: readonly(["process", "URL", "setTimeout"]) },
  },
];
